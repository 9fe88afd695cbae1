import pandas as pd
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

frame = pd.read_csv("train.csv")
x_train, x_test, y_train, y_test = train_test_split(frame.drop(columns="y"), frame["y"])
model = RandomForestClassifier(n_estimators=500, n_jobs=-1)
model.fit(x_train, y_train)
print(model.score(x_test, y_test))
