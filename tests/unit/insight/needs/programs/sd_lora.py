import argparse

import torch
from accelerate import Accelerator
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from peft import LoraConfig
from transformers import CLIPTextModel, CLIPTokenizer

parser = argparse.ArgumentParser()
parser.add_argument(
    "--pretrained_model_name_or_path",
    default="stable-diffusion-v1-5/stable-diffusion-v1-5",
)
parser.add_argument("--resolution", type=int, default=512)
parser.add_argument("--train_batch_size", type=int, default=1)
parser.add_argument("--max_train_steps", type=int, default=15000)
parser.add_argument("--rank", type=int, default=4)
args = parser.parse_args()


def main():
    accelerator = Accelerator(mixed_precision="fp16")
    name = args.pretrained_model_name_or_path
    scheduler = DDPMScheduler.from_pretrained(name, subfolder="scheduler")
    tokenizer = CLIPTokenizer.from_pretrained(name, subfolder="tokenizer")
    text_encoder = CLIPTextModel.from_pretrained(name, subfolder="text_encoder")
    vae = AutoencoderKL.from_pretrained(name, subfolder="vae")
    unet = UNet2DConditionModel.from_pretrained(name, subfolder="unet")
    unet.requires_grad_(False)
    vae.requires_grad_(False)
    text_encoder.requires_grad_(False)
    unet.add_adapter(
        LoraConfig(r=args.rank, target_modules=["to_k", "to_q", "to_v", "to_out.0"])
    )
    layers = filter(lambda p: p.requires_grad, unet.parameters())
    optimizer = torch.optim.AdamW(layers, lr=1e-4)
    unet, optimizer = accelerator.prepare(unet, optimizer)
    for step in range(args.max_train_steps):
        accelerator.backward(unet(None).loss)
        optimizer.step()


if __name__ == "__main__":
    main()
