import math

import numpy as np
import pytest
import torch

pytest.importorskip("pymunk", reason="needs pymunk: pip install 'neuralsde[video]'")

from neuralsde.core.records import from_dict, to_dict
from neuralsde.experiments.collisions import camera, physics, render
from neuralsde.experiments.collisions.clips import clips, film, split_clips
from neuralsde.experiments.collisions.config import CollisionsConfig
from neuralsde.experiments.collisions.physics import (
    GRAVITY,
    HALF_SIDE,
    RADIUS,
    TICKS,
    Thing,
    World,
    draw_scene,
    simulate,
)
from neuralsde.experiments.collisions.render import Renderer

SPHERE, CUBE, CYLINDER = range(3)
GRAY, RED, BLUE = range(3)
RUBBER, METAL = range(2)
CLEVRER = np.arange(128) * 5 / 128


def run(things, duration, **settings):
    """The world and its states at the ticks of `duration` seconds."""
    world = World(things, margin=math.inf, **settings)
    return world, *world.run(np.arange(round(duration * TICKS) + 1) / TICKS)


def picture(*objects, size=64, **settings):
    """(3, H, W) of objects (shape, colour, material, x, y, angle); of the bare ground without any."""
    num = max(1, len(objects))
    states, kinds = torch.zeros(1, num, 6), torch.zeros(1, num, 3, dtype=torch.long)
    for n, (*kind, x, y, angle) in enumerate(objects):
        states[0, n, :3], kinds[0, n] = torch.tensor([x, y, angle]), torch.tensor(kind)
    return Renderer(size, **settings)(states, kinds, torch.full((1, num), len(objects) > 0))[0].int()


def redness(image):
    return (image[0] - image[1:].amax(0)).clamp(min=0)


def middle(weights):
    """(across, down) of the centre of mass, in pixels."""
    weights = weights.double()
    down, across = (torch.arange(n, dtype=torch.float64) + 0.5 for n in weights.shape)
    return (weights.sum(0) @ across / weights.sum()).item(), (weights.sum(1) @ down / weights.sum()).item()


def overlap(one, two):
    """How deep two outlines (centre, half side or None, angle) lie in each other; negative: at most how far apart."""
    axes = [two[0] - one[0]]
    for centre, half, angle in (one, two):
        if half is not None:
            c, s = math.cos(angle), math.sin(angle)
            axes += [np.array([c, s]), np.array([-s, c])]
            other = two if centre is one[0] else one
            corners = centre + half * np.array([[c - s, s + c], [-s - c, c - s], [-c + s, -s - c], [s + c, s - c]])
            axes.append(corners[np.argmin(((corners - other[0]) ** 2).sum(1))] - other[0])
    best = math.inf
    for axis in axes:
        axis = axis / np.linalg.norm(axis)
        reach = 0.0
        for _, half, angle in (one, two):
            if half is None:
                reach += RADIUS
            else:
                reach += half * (
                    abs(axis @ (math.cos(angle), math.sin(angle))) + abs(axis @ (-math.sin(angle), math.cos(angle)))
                )
        best = min(best, reach - abs((two[0] - one[0]) @ axis))
    return best


# Physics


def test_friction_is_coulombs():
    """By hand: a body at v stops after v / (μ g) seconds and v² / (2 μ g) of way, whatever its mass or shape."""
    for shape in (SPHERE, CUBE, CYLINDER):
        for material, friction in enumerate(physics.FRICTIONS):
            rate, speed = friction * GRAVITY, 1.5
            _, states, _ = run([Thing(shape=shape, material=material, velocity=(0.9, 1.2))], speed / rate + 0.5)
            time = np.arange(len(states)) / TICKS
            velocity = np.linalg.norm(states[:, 0, 3:5], axis=1)
            np.testing.assert_allclose(velocity, np.maximum(speed - rate * time, 0), atol=1e-9)
            way = np.linalg.norm(states[:, 0, :2], axis=1)
            gone = np.minimum(time, speed / rate)
            np.testing.assert_allclose(way, speed * gone - rate * gone**2 / 2, atol=speed / TICKS)
            np.testing.assert_allclose(states[1:600, 0, 4] / states[1:600, 0, 3], 1.2 / 0.9)


def test_friction_stops_a_spin():
    """By hand: the torque is μ m g times the mean distance of the foot from the axis."""
    for shape in (CUBE, CYLINDER):
        thing = Thing(shape=shape, spin=5.0)
        rate = physics.FRICTIONS[0] * thing.mass * GRAVITY * thing.arm / thing.inertia
        _, states, _ = run([thing], 3.0)
        time = np.arange(len(states)) / TICKS
        np.testing.assert_allclose(states[:, 0, 5], np.maximum(5 - rate * time, 0), atol=1e-9)
        assert states[-1, 0, 5] == 0 and (states[:, 0, :2] == 0).all()
    x, y = np.random.default_rng(0).uniform(-HALF_SIDE, HALF_SIDE, (2, 100_000))
    assert Thing(shape=CUBE).arm == pytest.approx(np.hypot(x, y).mean(), rel=0.01)


@pytest.mark.parametrize("materials", [(RUBBER, RUBBER), (METAL, METAL), (RUBBER, METAL)])
def test_a_head_on_collision_by_hand(materials):
    """Without friction: momentum is kept, and the bodies part as fast as they met, times the restitution."""
    one = Thing(shape=SPHERE, material=materials[0], velocity=(2.0, 0.0))
    two = Thing(shape=CYLINDER, material=materials[1], position=(2.0, 0.0), velocity=(-0.5, 0.0))
    world, states, _ = run([one, two], 1.5, gravity=0.0)
    mass = np.array([one.mass, two.mass])
    momentum = (states[:, :, 3:5] * mass[:, None]).sum(1)
    np.testing.assert_allclose(momentum, np.broadcast_to(momentum[0], momentum.shape), atol=1e-12)
    restitution = math.sqrt(physics.RESTITUTIONS[materials[0]] * physics.RESTITUTIONS[materials[1]])
    assert states[-1, 1, 3] - states[-1, 0, 3] == pytest.approx(2.5 * restitution)
    assert states[0, 1, 3] - states[0, 0, 3] == -2.5
    # They touch when the gap of 2 - 2 r is closed, at 2.5 per second.
    ((time, first, second, x, y, speed),) = world.contacts
    assert (first, second) == (0, 1) and speed == pytest.approx(2.5)
    assert 0 <= time - (2 - 2 * RADIUS) / 2.5 <= 1.001 / TICKS
    assert (x, y) == pytest.approx((2 * time + RADIUS, 0.0), abs=0.01)


def test_a_collision_off_the_centre_keeps_momentum_and_turns():
    one = Thing(shape=SPHERE, velocity=(2.0, 0.0), position=(-2.0, 0.2))
    two = Thing(shape=CUBE, material=METAL, angle=0.3)
    _, states, _ = run([one, two], 2.5, gravity=0.0)
    mass, inertia = np.array([one.mass, two.mass]), np.array([one.inertia, two.inertia])
    x, y, _, vx, vy, spin = np.moveaxis(states, 2, 0)
    for kept in ((mass * vx).sum(1), (mass * vy).sum(1), (inertia * spin + mass * (x * vy - y * vx)).sum(1)):
        np.testing.assert_allclose(kept, kept[0], atol=0.02)  # a hit is seen up to a tick late: the arm is off by 4 mm
    assert abs(spin[-1, 1]) > 0.1 and abs(vy[-1, 0]) > 0.05


def energy_of(world):
    """Kinetic, of all that are there."""
    return sum(
        0.5 * (b.mass * b.velocity.dot(b.velocity) + b.moment * b.angular_velocity**2) for b in world._bodies.values()
    )


def test_energy_never_grows_and_nothing_interpenetrates():
    deepest, num_hits = 0.0, 0
    for seed in range(10):
        world = World(draw_scene(seed))
        energy, there = energy_of(world), world.state()[1]
        for tick in range(5 * TICKS):
            world.step()
            states, now = world.state()
            if not (now & ~there).any():  # what enters brings its own
                assert energy_of(world) <= energy + 1e-12
            energy, there = energy_of(world), now
            if tick % 8 == 0:
                bodies = [
                    (states[n, :2], HALF_SIDE if world.things[n].shape == CUBE else None, states[n, 2])
                    for n in np.flatnonzero(now)
                ]
                pairs = [(a, b) for k, a in enumerate(bodies) for b in bodies[:k]]
                deepest = max([deepest, *(overlap(a, b) for a, b in pairs if math.dist(a[0], b[0]) < 2 * RADIUS)])
        num_hits += len(world.contacts)
    assert num_hits > 10
    assert deepest < 0.03 * RADIUS


def test_overlap_sees_an_overlap():
    """The test of a test: two squares and two circles at known distances."""
    square = (np.zeros(2), HALF_SIDE, 0.0)
    assert overlap(square, (np.array([2 * HALF_SIDE - 0.05, 0.1]), HALF_SIDE, 0.0)) == pytest.approx(0.05)
    assert overlap((np.zeros(2), None, 0.0), (np.array([0.0, 0.7]), None, 0.0)) == pytest.approx(2 * RADIUS - 0.7)
    assert overlap(square, (np.array([HALF_SIDE + RADIUS, 0.0]), None, 0.0)) == pytest.approx(0.0, abs=1e-12)


def test_scenes_are_interesting():
    scenes = simulate(range(40), CLEVRER)
    hits = scenes.contacts
    seen = camera.outside(np.stack([hits["x"], hits["y"]], axis=1)) < 0
    per_scene = np.bincount(hits["scene"][seen], minlength=40)
    assert (per_scene > 0).mean() > 0.6 and per_scene.mean() > 1
    assert (hits["time"] >= 0).all() and (hits["time"] <= CLEVRER[-1]).all()
    num_objects = scenes.mask.any(1).sum(1)
    assert set(num_objects.tolist()) <= {1, 2, 3, 4, 5} and num_objects.max() == 5
    in_view = (camera.outside(scenes.states[..., :2]) < 0) & scenes.mask
    assert (in_view[:, -1].sum(1) < in_view.any(1).sum(1)).any(), "none leaves"
    assert (~scenes.mask[:, 0] & scenes.mask.any(1)).any(), "none enters later"
    for k, num in enumerate((3, 8, 2)):
        assert set(scenes.kinds[..., k].ravel().tolist()) == set(range(num))


def test_nothing_appears_in_view():
    """Objects come from beyond the image and are gone there, shadow and all: when it happens, no pixel shows it."""
    scenes = simulate(range(16), CLEVRER)
    there = scenes.mask
    comes, goes = np.zeros_like(there), np.zeros_like(there)
    comes[:, 1:], goes[:, :-1] = there[:, 1:] & ~there[:, :-1], there[:, :-1] & ~there[:, 1:]
    for found in (comes, goes):
        at = rows, _ = np.nonzero(found.any(2))
        assert len(rows) > 5
        states, kinds, mask, less = map(torch.from_numpy, (scenes.states[at], scenes.kinds[rows], there[at], found[at]))
        assert torch.equal(Renderer(64)(states, kinds, mask), Renderer(64)(states, kinds, mask & ~less))


# One seed, one scene


def test_a_scene_is_a_function_of_its_seed():
    many, one = simulate(range(5, 12), CLEVRER), simulate([8], CLEVRER)
    np.testing.assert_array_equal(many.states[3], one.states[0])
    np.testing.assert_array_equal(many.mask[3], one.mask[0])
    np.testing.assert_array_equal(many.kinds[3], one.kinds[0])
    of_it = many.contacts[many.contacts["scene"] == 3]
    assert (
        len(of_it)
        and of_it[["time", "first", "second", "x"]].tolist() == one.contacts[["time", "first", "second", "x"]].tolist()
    )
    assert not np.array_equal(many.states[2], many.states[3])


def test_scenes_do_not_depend_on_the_number_of_processes():
    alone, together = (simulate(range(6), CLEVRER[::5], num_workers=n) for n in (1, 2))
    for name in ("states", "mask", "kinds", "contacts"):
        np.testing.assert_array_equal(getattr(alone, name), getattr(together, name))


def test_finer_frames_contain_the_coarse_ones():
    for coarse, factor in ((5.12, 5), (10.0, 3), (7.3, 2)):
        few = clips(range(2), num_frames=6, fps=coarse, size=32)
        many = clips(range(2), num_frames=5 * factor + 1, fps=coarse * factor, size=32)
        assert torch.equal(few.states, many.states[:, ::factor]) and torch.equal(few.frames, many.frames[:, ::factor])
        assert not torch.equal(many.frames[:, 0], many.frames[:, 1])


def test_states_between_ticks_lie_on_the_way():
    times = np.linspace(1.0, 1.0 + 2 / TICKS, 9)
    states = simulate([3], times).states[0].astype(np.float64)
    moving = np.abs(states[0, :, 3:5]).max(1) > 0.5
    assert moving.any()
    steps = np.diff(states[:, moving, :2], axis=0) * TICKS * 4
    np.testing.assert_allclose(steps, states[:-1, moving, 3:5], atol=2e-3)


def test_frames_do_not_depend_on_chunks(monkeypatch):
    scenes = simulate(range(3), CLEVRER[::16])
    whole = film(scenes, Renderer(48))
    monkeypatch.setattr(render, "CPU_MEMORY", 1.0)
    assert torch.equal(film(scenes, Renderer(48)), whole)
    one = clips([1], num_frames=8, fps=1.6, size=48)
    assert torch.equal(one.frames[0], whole[1])


# Camera


def test_projection_by_hand():
    """The target is in the middle; a point one unit to the right of it is 1 / (2 · depth · half width) of the side away."""
    place, depth = camera.project(camera.TARGET)
    np.testing.assert_allclose(place, [0.5, 0.5], atol=1e-12)
    assert depth == pytest.approx(camera.DISTANCE)
    place, _ = camera.project(camera.TARGET + np.array([1.0, 0.0, 0.0]))
    np.testing.assert_allclose(place, [0.5 + 1 / (2 * camera.DISTANCE * camera.HALF_WIDTH), 0.5], atol=1e-12)
    # Straight up by one: seen under the cosine of the elevation, and nearer by its sine.
    place, depth = camera.project(camera.TARGET + np.array([0.0, 0.0, 1.0]))
    assert depth == pytest.approx(camera.DISTANCE - math.sin(camera.ELEVATION))
    assert place[1] == pytest.approx(0.5 - math.cos(camera.ELEVATION) / (2 * camera.HALF_WIDTH * depth))


def test_projection_and_rays_are_inverse(np_rng):
    places = np_rng.uniform(0, 1, (50, 2))
    ground = camera.on_ground(places)
    np.testing.assert_allclose(camera.project(np.c_[ground, np.zeros(50)])[0], places, atol=1e-12)
    assert (camera.outside(ground) < 0).all() and (camera.outside(camera.CORNERS * 1.2 + [0, 0.5]) > 0).any()


def test_the_visible_part_of_the_plane(np_rng):
    points = np_rng.uniform(-8, 8, (500, 2))
    inside = ((places := camera.project(np.c_[points, np.zeros(500)])[0]) > 0).all(1) & (places < 1).all(1)
    in_front = camera.project(np.c_[points, np.zeros(500)])[1] > 0
    np.testing.assert_array_equal(camera.outside(points) < 0, inside & in_front)


# Pictures


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("shape", [SPHERE, CUBE, CYLINDER])
def test_an_object_is_drawn_where_it_is_seen(size, shape):
    for x, y in ((0.0, 0.0), (-1.5, 1.0), (1.2, -1.5), (0.7, 4.0)):
        place, _ = camera.project(np.array([x, y, physics.HEIGHTS[shape] / 2]))
        image = picture((shape, RED, RUBBER, x, y, 0.4), size=size)
        assert middle((redness(image) > 30).int()) == pytest.approx((place * size).tolist(), abs=0.02 * size)


def test_directions_in_the_image():
    at = [middle(redness(picture((SPHERE, RED, RUBBER, *xy, 0.0)))) for xy in ((0, 0), (0.5, 0), (0, 0.5))]
    assert at[1][0] > at[0][0] + 4 and at[1][1] == pytest.approx(at[0][1], abs=0.3)
    assert at[2][1] < at[0][1] - 2 and at[2][0] == pytest.approx(at[0][0], abs=0.3)
    near, far = ((redness(picture((SPHERE, RED, RUBBER, 0, y, 0.0))) > 30).sum() for y in (-1.5, 4.0))
    assert near > 2 * far


def test_a_sphere_is_as_large_as_it_should_be():
    """The outline of a sphere is a cone about its centre: tan² of its half angle is r² / (d² - r²)."""
    size = 256
    centre = np.array([0.0, camera.TARGET[1], RADIUS])
    distance = np.linalg.norm(centre - camera.EYE)
    radius = RADIUS / math.sqrt(distance**2 - RADIUS**2) * size / (2 * camera.HALF_WIDTH)
    covered = (picture((SPHERE, RED, RUBBER, *centre[:2], 0.0), size=size)[0] - picture(size=size)[0]).abs() > 0
    red = redness(picture((SPHERE, RED, RUBBER, *centre[:2], 0.0), size=size)) > 10
    assert red.sum().item() == pytest.approx(math.pi * radius**2, rel=0.03) and covered.sum() > red.sum()


def test_turning_shows_on_a_cube_only():
    for shape in (SPHERE, CYLINDER):
        still, turned = (picture((shape, BLUE, METAL, 0.3, 0.2, angle)) for angle in (0.0, 1.1))
        assert (still - turned).abs().max() <= 1
    still, turned, quarter = (picture((CUBE, BLUE, METAL, 0.3, 0.2, angle)) for angle in (0.2, 0.9, 0.2 + math.pi / 2))
    assert (still - turned).abs().max() > 30
    assert (still - quarter).abs().max() <= 1, "a quarter turn leaves a cube as it was"


def test_shapes_materials_and_colours_differ():
    images = [picture((s, c, m, 0, 0, 0.3)) for s in range(3) for c in range(8) for m in range(2)]
    for k, one in enumerate(images):
        for two in images[:k]:
            assert (one - two).abs().float().mean() > 0.1
    shiny, matt = (picture((SPHERE, RED, m, 0, 0, 0.0), size=128) for m in (METAL, RUBBER))
    bare = picture(size=128)[1:].amax()
    assert shiny[1:].amax() > bare + 40 and matt[1:].amax() <= bare, "a white highlight, on metal alone"


def test_who_is_near_hides_who_is_far():
    """In either order of the objects, and the far one is seen where it is alone."""
    red, blue = (CYLINDER, RED, RUBBER, 0.0, 0.0, 0.0), (CYLINDER, BLUE, RUBBER, 0.2, 1.0, 0.0)
    both, other = picture(red, blue), picture(blue, red)
    assert torch.equal(both, other)
    front = redness(picture(red)) > 60
    assert (redness(both)[front] > 40).all()
    assert (picture(blue)[2] - picture(blue)[0] > 60)[front].any(), "they do not overlap: choose other places"
    behind = (both[2] - both[0] > 60).sum()
    assert 0 < behind < (picture(blue)[2] - picture(blue)[0] > 60).sum()


def test_shadows_fall_away_from_the_light_and_touch_their_objects():
    size = 128
    for shape in (SPHERE, CUBE, CYLINDER):
        image, bare = picture((shape, RED, RUBBER, 0, 0, 0.3), size=size), picture(size=size)
        dark = ((bare - image).amin(0) > 25) & (redness(image) < 8)
        red = redness(image) > 30
        foot = camera.project(np.zeros(3))[0] * size
        across, down = middle(dark.int())
        assert dark.sum() > 60
        assert across > foot[0] + 2 and down < foot[1] + 2, "the light comes from the left, in front"
        # No gap between an object and its shadow: along some row, ground is dark right after the object ends.
        ends = [(row, int(red[row].nonzero().max())) for row in range(size) if red[row].any()]
        assert any(dark[row, end + 2] for row, end in ends)
        # By hand: the shadow of the middle of the body lies on the line of light through it.
        x, y, z = render.KEY
        tip = -physics.HEIGHTS[shape] * 0.5 / z * np.array([x, y])
        column, line = (camera.project(np.array([*(tip * 1.8), 0.0]))[0] * size).astype(int)
        assert dark[line, column]
    assert (picture() - picture((SPHERE, RED, RUBBER, 0, 0, 0)))[:, 40:, :10].abs().max() <= 2, "far away there is none"


def test_objects_cast_shadows_on_objects():
    """Along the light, the one behind is darker; across it, it is not."""
    x, y, _ = render.KEY / np.linalg.norm(render.KEY[:2])
    red = (CYLINDER, RED, RUBBER, 0.0, 0.0, 0.0)
    lit = redness(picture(red)).float()
    behind = redness(picture(red, (SPHERE, GRAY, RUBBER, 0.9 * x, 0.9 * y, 0.0))).float()
    beside = redness(picture(red, (SPHERE, GRAY, RUBBER, 0.9 * y, -0.9 * x, 0.0))).float()
    seen = (lit > 50) & (beside > 30)
    assert (behind / lit)[seen].quantile(0.05) < 0.75 and (beside / lit)[seen].min() > 0.97


def test_the_light_on_a_cube_by_hand():
    """Sky, key and fill on the top and on the side towards the light, of the colour, with a gamma of 2."""
    size, angle = 256, 0.5
    image = picture((CUBE, GRAY, RUBBER, 0, 0, angle), size=size)
    key, fill = (v / np.linalg.norm(v) for v in (render.KEY, render.FILL))
    side = np.array([-math.cos(angle), -math.sin(angle), 0.0])
    along = np.array([-side[1], side[0], 0.0])
    for normal, point in (
        (np.array([0.0, 0.0, 1.0]), np.array([0.0, 0.0, 2 * HALF_SIDE])),
        *((side, HALF_SIDE * (side + k * along) + [0, 0, z]) for k in (-0.7, 0.7) for z in (0.05, 0.4)),
    ):
        sky = render.AMBIENT * (0.75 + 0.25 * normal[2]) * (0.55 + 0.45 * min(point[2] / RADIUS, 1))
        light = sky + render.KEY_LIGHT * (normal @ key) + render.FILL_LIGHT * max(normal @ fill, 0)
        column, row = (camera.project(point)[0] * size).astype(int)
        assert image[0, row, column].item() == pytest.approx(87 * math.sqrt(light), abs=2)


def test_windows_cut_nothing_off(np_rng):
    num = 150
    low, high = camera.CORNERS.min(0) - 1, camera.CORNERS.max(0) + 1
    states, kinds = np.zeros((num, 2, 6), np.float32), np_rng.integers(0, (3, 8, 2), (num, 2, 3))
    states[..., :2] = np_rng.uniform(low, high, (num, 2, 2))
    states[:100, :, :2] = np_rng.uniform((-2.3, -3.6), (2.3, -1.5), (100, 2, 2))  # where objects are largest
    states[..., 2] = np_rng.uniform(0, 7, (num, 2))
    for size in (17, 40):
        windows, whole = Renderer(size), Renderer(size)
        whole.window = size
        arguments = torch.from_numpy(states), torch.from_numpy(kinds), torch.ones(num, 2, dtype=torch.bool)
        assert torch.equal(windows(*arguments), whole(*arguments))


def test_who_is_not_there_leaves_no_trace():
    states, kinds = torch.zeros(2, 2, 6), torch.zeros(2, 2, 3, dtype=torch.long)
    states[0, 1, :2] = 1.0
    images = Renderer(32)(states, kinds, torch.tensor([[True, False], [True, False]]))
    assert torch.equal(images[0], images[1])
    assert torch.equal(images[0].int(), picture((SPHERE, GRAY, RUBBER, 0, 0, 0), size=32))


def test_motion_below_a_pixel_does_not_flicker():
    """An object keeps its size and its brightness as it moves by tenths of a pixel, and its middle moves evenly."""
    images = [picture((CUBE, RED, RUBBER, 0.008 * k, 0, 0.3)) for k in range(20)]
    total = torch.tensor([redness(i).sum() for i in images]).double()
    assert total.std() / total.mean() < 0.02
    across = np.array([middle(redness(i))[0] for i in images])
    line = np.polyval(np.polyfit(np.arange(20), across, 1), np.arange(20))
    assert np.abs(across - line).max() < 0.12


def test_more_rays_come_closer_to_the_truth():
    things = (CUBE, RED, RUBBER, 0, 0, 0.3), (SPHERE, BLUE, METAL, 0.8, 0.5, 0.0)
    best = picture(*things, samples=4)
    errors = [(picture(*things, samples=n) - best).float().square().mean() for n in (1, 2, 3)]
    assert errors[0] > 2 * errors[1] > 2 * errors[2]


# The door


def test_clips_come_with_their_truth():
    found = clips([0, 7], num_frames=10, fps=5.12, size=32, start=0.5)
    assert found.frames.shape == (2, 10, 3, 32, 32) and found.frames.dtype == torch.uint8
    assert found.states.shape == (2, 10, 5, 6) and found.mask.shape == (2, 10, 5) and found.kinds.shape == (2, 5, 3)
    np.testing.assert_allclose(found.times, 0.5 + np.arange(10) / 5.12)
    assert (found.states[~found.mask] == 0).all() and found.contacts["scene"].max() <= 1


def test_splits_are_apart():
    config = CollisionsConfig(size=16, num_frames=2, num_train=3, num_validation=2, num_test=2)
    assert [config.seeds(s)[0] for s in ("train", "validation", "test")] == [0, 1_000_000, 2_000_000]
    most = CollisionsConfig(num_train=1_000_000, num_validation=1_000_000)
    assert most.seeds("train")[-1] < most.seeds("validation")[0] <= most.seeds("validation")[-1] < most.seeds("test")[0]
    found = split_clips(config, "validation", num=1)
    assert torch.equal(found.frames, clips([1_000_000], size=16, num_frames=2).frames)
    assert len(split_clips(config, "test").frames) == 2
    assert from_dict(CollisionsConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 8}, r"`size` must be from 16 to 512 pixels. Got size=8"),
        ({"size": 64.0}, "`size` must be a whole number"),
        ({"fps": 0.0}, "`fps` must be a positive number"),
        ({"fps": math.nan}, "`fps` must be finite"),
        ({"num_frames": 0}, "`num_frames` must be at least 1"),
        ({"num_frames": 1_000}, "must not last longer than 60 s"),
        ({"num_train": 1_000_001}, "`num_train` must be from 1 to 1,000,000"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CollisionsConfig(**settings)
    if not set(settings) & {"num_train"} and settings.get("size") != 64.0:  # which jaxtyping sees
        with pytest.raises(ValueError, match=message):
            clips([0], **settings)


def test_bad_calls_are_refused():
    with pytest.raises(ValueError, match=r"`seeds` must be a row of whole numbers from 0. Got \[-1\]"):
        simulate([-1], [0.0])
    with pytest.raises(ValueError, match="`seeds` must be a row"):
        simulate([], [0.0])
    for times in ([0.0, 0.0], [-1.0], [math.inf], []):
        with pytest.raises(ValueError, match="`times` must be a row of seconds that increase"):
            simulate([0], times)
    with pytest.raises(ValueError, match="`num_objects` must be"):
        simulate([0], [0.0], num_objects=(3, 2))
    with pytest.raises(ValueError, match="`num_workers` must be at least 1"):
        simulate([0], [0.0], num_workers=0)
    with pytest.raises(ValueError, match="`split` must be one of train, validation, test"):
        CollisionsConfig().seeds("dev")


def test_a_missing_pymunk_is_one_line(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pymunk", None)
    physics._pymunk.cache_clear()
    with pytest.raises(ValueError, match=r"pip install 'neuralsde\[video\]'"):
        simulate([0], [0.0])
    physics._pymunk.cache_clear()
