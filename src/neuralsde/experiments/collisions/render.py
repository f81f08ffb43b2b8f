"""Pictures of the colliding objects, ray cast in torch: a batch of frames at once, on any device.

Every shape is an intersection of slabs and a quadric, so that one formula meets them all: along a ray, each of these is an
interval, and the body is where the intervals overlap. A frame is made of two layers. The ground takes one ray per pixel;
shadows on it have soft edges, as dark as the way of the light through a body is long. An object takes `samples`² rays per
pixel, inside a window round it that is moved into the image; a depth buffer decides who is in front. Light is summed in
linear units and shown with a gamma of 2: there is nothing but exact arithmetic and square roots, so that a frame does not
depend on the batch it is in.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from neuralsde.experiments.collisions import camera
from neuralsde.experiments.collisions.physics import HALF_SIDE, HEIGHTS, RADIUS

Vector = tuple[Tensor, Tensor, Tensor]

PALETTE = (
    *((87, 87, 87), (173, 35, 35), (42, 75, 215), (29, 105, 20)),
    *((129, 74, 25), (129, 38, 192), (41, 208, 208), (255, 238, 51)),
)
"""As in CLEVR, in the order of COLOURS."""
WINDOW = 0.31  # side of the window in which an object is drawn, in units of the image
GROUND = 0.4  # brightness of the ground, in linear light
KEY = np.array([-0.72, -0.32, 0.8])  # towards the light that casts shadows: to the left, in front and above
FILL = np.array([0.8, -0.5, 0.6])  # towards a weaker light without shadows
AMBIENT, KEY_LIGHT, FILL_LIGHT = 0.38, 0.95, 0.22
MEMORY, CPU_MEMORY = 2e9, 16e6  # bytes in use at a time; on a CPU, a cache must hold them
_FAR = 1e3


def _unit(values: np.ndarray) -> tuple[float, float, float]:
    x, y, z = (values / np.linalg.norm(values)).tolist()
    return x, y, z


_KEY, _FILL = _unit(KEY), _unit(FILL)
# Axes across the light, in which shadows of one object on another are found.
_ACROSS = (_unit(np.cross(KEY, [0.0, 0.0, 1.0])), _unit(np.cross(KEY, np.cross(KEY, [0.0, 0.0, 1.0]))))
# Of sphere, cube and cylinder: height; whether the quadric closes above; its radius; half the side; radius of its stand-in.
_SHAPE_TABLE = [
    (HEIGHTS[0], 1.0, RADIUS, _FAR, RADIUS),
    (HEIGHTS[1], 0.0, _FAR, HALF_SIDE, 0.9 * RADIUS),
    (HEIGHTS[2], 0.0, RADIUS, _FAR, 0.95 * RADIUS),
]
# Of rubber and metal: diffuse light, highlight, what it mirrors.
_MATERIAL_TABLE = [(1.0, 0.0, 0.0), (0.35, 1.0, 0.9)]


def _power(x: Tensor, doublings: int) -> Tensor:
    for _ in range(doublings):
        x = x * x
    return x


@dataclass
class _Bodies:
    """The objects of B frames; every value is (B, N, 1, 1)."""

    x: Tensor
    y: Tensor
    cos: Tensor
    sin: Tensor
    height: Tensor
    closed: Tensor
    radius: Tensor
    half: Tensor
    stand_in: Tensor


def _meet(body: _Bodies, origin: Vector, direction: Vector) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Where rays enter and leave bodies, and where they pass the front faces of their slabs; origins relative to the foot."""
    (ox, oy, oz), (dx, dy, dz) = origin, direction
    # Quadric: a circle, or a sphere on the ground. A ray that misses it enters and leaves at once.
    up = oz - body.radius
    a = dx * dx + (dy * dy + body.closed * dz * dz)
    b = dx * ox + (dy * oy + body.closed * dz * up)
    c = ox * ox + (oy * oy + body.closed * up * up - body.radius**2)
    root = (b * b - a * c).clamp(min=0).sqrt()
    near, far = (-b - root) / a, (root - b) / a
    # Slabs: between the ground and the top, and along the sides of a square.
    low, high = -oz / dz, (body.height - oz) / dz
    front = torch.minimum(low, high)
    near, far = torch.maximum(near, front), torch.minimum(far, torch.maximum(low, high))
    faces = []
    for p, q in ((body.cos, body.sin), (-body.sin, body.cos)):
        inverse = 1 / (p * dx + (q * dy + 1e-9))
        middle, reach = -(p * ox + q * oy) * inverse, body.half * inverse.abs()
        faces.append(middle - reach)
        near, far = torch.maximum(near, faces[-1]), torch.minimum(far, middle + reach)
    return near, far, front, faces[0], faces[1]


class Renderer:
    """Draws square images of one size on one device."""

    def __init__(self, size: int = 64, *, device: torch.device | str = "cpu", samples: int = 2) -> None:
        self.size, self.samples, self.device = size, samples, torch.device(device)
        self.window = min(size, math.ceil(size * WINDOW) + 1)
        middles = (np.arange(size) + 0.5) / size
        ground = camera.on_ground(np.stack(np.meshgrid(middles, middles), axis=-1))
        self._ground_x, self._ground_y = self._tensor(ground[..., 0]), self._tensor(ground[:, :1, 1])
        # The pool of light gets weaker away from the middle.
        far = ((ground - camera.TARGET[:2]) ** 2).sum(-1)
        self._ground = self._tensor(GROUND * (0.78 + 0.34 / (1 + far / 14)))
        colours = (np.array(PALETTE) / 255) ** 2
        self._shapes, self._colours = self._tensor(_SHAPE_TABLE), self._tensor(colours)
        self._materials = self._tensor(_MATERIAL_TABLE)
        self._key = (self._tensor(_KEY[0]), self._tensor(_KEY[1]), self._tensor(_KEY[2]))

    def _tensor(self, values: Any) -> Tensor:
        return torch.as_tensor(np.asarray(values), dtype=torch.float32, device=self.device)

    def __call__(
        self, states: Float[Tensor, "B N 6"], kinds: Int[Tensor, "B N 3"], mask: Bool[Tensor, "B N"]
    ) -> UInt8[Tensor, "B 3 H W"]:
        """Pictures of states as `simulate` leaves them, in chunks that fit into memory."""
        turn = states[..., 2].double()  # sines that do not depend on how they are computed
        poses = torch.stack([states[..., 0], states[..., 1], turn.cos().float(), turn.sin().float()], dim=-1)
        poses, kinds, mask = (v.to(self.device) for v in (poses, kinds, mask))
        per_frame = 4 * states.shape[1] * (25 * (self.window * self.samples) ** 2 + 10 * self.size**2)
        chunk = max(1, int((CPU_MEMORY if self.device.type == "cpu" else MEMORY) / per_frame))
        out = torch.empty(len(poses), 3, self.size, self.size, dtype=torch.uint8, device=self.device)
        for k in range(0, len(poses), chunk):
            light = self.light(poses[k : k + chunk], kinds[k : k + chunk], mask[k : k + chunk])
            out[k : k + chunk] = (light.clamp(0, 1).sqrt() * 255).round().to(torch.uint8)
        return out

    def light(
        self, poses: Float[Tensor, "B N 4"], kinds: Int[Tensor, "B N 3"], mask: Bool[Tensor, "B N"]
    ) -> Float[Tensor, "B 3 H W"]:
        """Linear light of the pixels; poses are x, y, cosine and sine. May be compiled: it has no loop but over objects."""
        x, y, cos, sin = poses.unbind(-1)
        x, y = torch.where(mask, x, 0.0), torch.where(mask, y, 100.0)  # what is not there is where nothing sees it
        values = (x, y, cos, sin, *self._shapes[kinds[..., 0]].unbind(-1))
        body = _Bodies(*(v[..., None, None] for v in values))
        objects, clear = self._objects(body, self._colours[kinds[..., 1]], self._materials[kinds[..., 2]])
        return objects + clear * self._lit_ground(body)[:, None]

    def _lit_ground(self, body: _Bodies) -> Float[Tensor, "B H W"]:
        """The plane with shadows, darker where objects stand."""
        x, y = self._ground_x - body.x, self._ground_y - body.y
        enters, leaves, *_ = _meet(body, (x, y, torch.zeros_like(body.x)), self._key)
        enters = enters.clamp_(min=0)
        shadow = ((leaves - enters) / (0.12 + 0.35 * enters)).clamp_(0, 1)
        shadow = 1 - shadow * shadow * (3 - 2 * shadow)
        crowd = (1 - (x * x + y * y) / (2 * RADIUS) ** 2).clamp_(min=0)
        open_sky = 1 - 0.8 * crowd * crowd
        key, sky = shadow[:, 0], open_sky[:, 0]
        for n in range(1, shadow.shape[1]):
            key, sky = key * shadow[:, n], sky * open_sky[:, n]
        return self._ground * (AMBIENT * sky + KEY_LIGHT * _KEY[2] * key + FILL_LIGHT * _FILL[2])

    def _objects(self, body: _Bodies, colour: Tensor, material: Tensor) -> tuple[Tensor, Tensor]:
        """Light of the objects (B, 3, H, W) and the share (B, 1, H, W) of each pixel that they leave free."""
        # Windows round the objects, moved into the image.
        side, fine, step = self.size, self.size * self.samples, self.window * self.samples
        ex, ey, ez = camera.EYE.tolist()
        depth = (body.y - ey) * camera.FORWARD[1] + (body.height / 2 - ez) * camera.FORWARD[2]
        down = -((body.y - ey) * camera.UP[1] + (body.height / 2 - ez) * camera.UP[2])
        scale = side / (2 * camera.HALF_WIDTH) / depth
        corner_x, corner_y = (
            (0.5 * (side - self.window) + v * scale).round().clamp(0, side - self.window) * self.samples
            for v in (body.x, down)
        )
        grid = torch.arange(step, device=self.device)
        columns, rows = corner_x + grid, corner_y + grid[:, None]
        # Rays; their length is measured along the axis of the camera.
        across = (columns + 0.5) * (2 * camera.HALF_WIDTH / fine) - camera.HALF_WIDTH
        down = (rows + 0.5) * (2 * camera.HALF_WIDTH / fine) - camera.HALF_WIDTH
        ray = (across, *(camera.FORWARD[k] - camera.UP[k] * down for k in (1, 2)))
        origin = (ex - body.x, ey - body.y, torch.full_like(body.x, ez))
        enters, leaves, *faces = _meet(body, origin, ray)
        light = self._shade(body, colour, material, origin, ray, enters, faces)
        seen = torch.cat([light, torch.where(enters < leaves, enters, torch.inf)[..., None]], dim=-1)
        return self._in_front(seen.flatten(2, 3), (rows.long() * fine + columns.long()).flatten(2))

    def _in_front(
        self, seen: Float[Tensor, "B N P 4"], places: Int[Tensor, "B N P"]
    ) -> tuple[Float[Tensor, "B 3 H W"], Float[Tensor, "B 1 H W"]]:
        """Light and free share of the pixels, from light and depth of each object at its places among all rays."""
        side, samples, num_frames = self.size, self.samples, len(seen)
        num_rays = (side * samples) ** 2
        places = places + num_rays * torch.arange(num_frames, device=self.device)[:, None, None]
        buffer = seen.new_zeros(num_frames * num_rays, 4)
        buffer[:, 3] = torch.inf
        for n in range(seen.shape[1]):
            place, new = places[:, n].flatten(), seen[:, n].flatten(0, 1)
            old = buffer[place]
            buffer[place] = torch.where(new[:, 3:] < old[:, 3:], new, old)
        buffer[:, 3] = buffer[:, 3].isinf().float()
        rays = buffer.view(num_frames, side, samples, side, samples, 4)
        mean = torch.zeros_like(rays[:, :, 0, :, 0])
        for i in range(samples**2):  # a fixed order, unlike a reduction
            mean += rays[:, :, i // samples, :, i % samples] / samples**2
        return mean[..., :3].permute(0, 3, 1, 2), mean[..., 3:].permute(0, 3, 1, 2)

    def _shade(
        self,
        body: _Bodies,
        colour: Tensor,
        material: Tensor,
        origin: Vector,
        ray: Vector,
        t: Tensor,
        faces: list[Tensor],
    ) -> Float[Tensor, "B N Q Q 3"]:
        """Light that the points at `t` along the rays send back."""
        (ox, oy, oz), (dx, dy, dz) = origin, ray
        x, y, z = ox + t * dx, oy + t * dy, oz + t * dz
        # Normals: of the top, of the sides of a cube, else of the quadric.
        top, one, two = (face >= t for face in faces)
        sign_u, sign_v = -(body.cos * dx + body.sin * dy).sign(), -(body.cos * dy - body.sin * dx).sign()
        nx = torch.where(one, sign_u * body.cos, torch.where(two, -sign_v * body.sin, x / body.radius))
        ny = torch.where(one, sign_u * body.sin, torch.where(two, sign_v * body.cos, y / body.radius))
        nx, ny = nx.masked_fill(top, 0.0), ny.masked_fill(top, 0.0)
        nz = (body.closed * (z / body.radius - 1)).masked_fill(top, 1.0)
        # Lights, and their mirror images.
        shorten = (dx * dx + (dy * dy + dz * dz)).rsqrt()
        facing = (nx * dx + (ny * dy + nz * dz)) * shorten
        lit, gloss = [], []
        for lx, ly, lz in (_KEY, _FILL):
            towards = nx * lx + ny * ly + nz * lz
            gloss.append((dx * lx + (dy * ly + dz * lz)) * shorten - 2 * facing * towards)
            lit.append(towards.clamp(min=0))
        shadow = self._shadow_on_objects(body, x, y, z)
        mirrored_up = dz * shorten - 2 * facing * nz
        rise = 0.55 + (0.45 / RADIUS) * z.clamp(0, RADIUS)  # darker where it stands
        sky = AMBIENT * (0.75 + 0.25 * nz) * rise
        diffuse = sky + KEY_LIGHT * lit[0] * shadow + FILL_LIGHT * lit[1]
        around = (0.34 - 0.22 * (2 * mirrored_up).clamp(-1, 1)) * rise  # the bright ground below, little above
        broad, fill = (_power(g.clamp(min=0), 3) for g in gloss)
        narrow = _power(broad, 2) * shadow + 0.4 * _power(fill, 2)
        matt, shine, mirror = (material[..., k, None, None] for k in range(3))
        tinted = matt * diffuse + mirror * (around + broad * shadow + 0.3 * fill)
        white = shine * narrow + 0.03 * broad * shadow
        return tinted[..., None] * colour[:, :, None, None] + white[..., None]

    def _shadow_on_objects(self, body: _Bodies, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        """Share of the key light that reaches points, relative to the feet of their objects, past the others as spheres."""
        (ax, ay, az), (bx, by, bz), (kx, ky, kz) = *_ACROSS, _KEY
        first, second, along = (
            vx * (x + body.x) + vy * (y + body.y) + vz * z for vx, vy, vz in ((ax, ay, az), (bx, by, bz), (kx, ky, kz))
        )
        shadow = torch.ones_like(x)
        for m in range(x.shape[1]):
            cx, cy, cz, r = (v[:, m, None] for v in (body.x, body.y, body.height / 2, body.stand_in))
            p = first - (ax * cx + ay * cy + az * cz)
            q = second - (bx * cx + by * cy + bz * cz)
            behind = ((kx * cx + ky * cy + kz * cz) - along) * (2 / RADIUS)
            block = ((r * r - p * p - q * q) * (2 / (r * r))).clamp_(0, 1) * behind.clamp_(0, 1)
            block[:, m] = 0
            shadow = shadow * (1 - block)
        return shadow
