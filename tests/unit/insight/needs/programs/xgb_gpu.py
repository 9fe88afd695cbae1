import xgboost as xgb
from sklearn.datasets import fetch_covtype
from sklearn.model_selection import train_test_split

x, y = fetch_covtype(return_X_y=True)
x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25)
params = {
    "objective": "multi:softmax",
    "num_class": 8,
    "device": "cuda",
    "tree_method": "hist",
}
train = xgb.DMatrix(x_train, label=y_train)
xgb.train(params, train, num_boost_round=3000)
