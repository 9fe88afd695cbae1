import math
import random

w, b = 0.0, 0.0
points = [(x / 10, 3 * x / 10 + 2 + random.gauss(0, 0.1)) for x in range(100)]
for epoch in range(200):
    for x, y in points:
        error = w * x + b - y
        w -= 0.01 * error * x
        b -= 0.01 * error
print(math.sqrt(w * w + b * b))
