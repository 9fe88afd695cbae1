from ultralytics import YOLO

model = YOLO("yolov8n.pt")
model.train(data="coco8.yaml", epochs=100, imgsz=640, batch=16)
