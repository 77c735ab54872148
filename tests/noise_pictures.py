"""Pictures of noise, and the forms in which clients send them."""

import base64
import io

import numpy as np
from PIL import Image


def picture(width, height, seed):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def png(image):
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def data_url(image):
    return "data:image/png;base64," + base64.b64encode(png(image)).decode()
