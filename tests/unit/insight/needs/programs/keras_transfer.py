import tensorflow as tf

base = tf.keras.applications.MobileNetV2(input_shape=(160, 160, 3), include_top=False)
base.trainable = False
inputs = tf.keras.Input(shape=(160, 160, 3))
x = base(inputs, training=False)
x = tf.keras.layers.GlobalAveragePooling2D()(x)
x = tf.keras.layers.Dropout(0.2)(x)
outputs = tf.keras.layers.Dense(1)(x)
model = tf.keras.Model(inputs, outputs)
train = tf.keras.utils.image_dataset_from_directory(
    "data", image_size=(160, 160), batch_size=32
)
model.compile(optimizer=tf.keras.optimizers.Adam(1e-4), loss="binary_crossentropy")
model.fit(train, epochs=10)
