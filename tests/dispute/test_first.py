from tests.dispute.arena import make_game, make_key, play
from tests.tasks import make_tiny_task
from vtrain.demo.lies import Lies, LyingSession, add_one
from vtrain.dispute.engine_provider import EngineProvider
from vtrain.dispute.players import Player
from vtrain.engines.registry import open_session


def test_one() -> None:
    task = make_tiny_task("mlp", steps=10, commit_every=5, checkpoint_every=5)
    honest = EngineProvider(task, open_session("cpu", task.graph, task.samples))
    for node in range(len(task.graph.nodes)):
        n = task.graph.nodes[node]
        try:
            liar = EngineProvider(task, LyingSession(task, Lies({(7, node): add_one(0)})))
        except Exception as e:
            print(node, n.op, "cannot lie", e)
            continue
        if liar.log().root == honest.log().root:
            print(node, n.op, "no difference")
            continue
        genesis = make_game(task, liar, make_key(1))
        result = play(genesis, [Player(liar, make_key(1)), Player(honest, make_key(2))])
        f = result.verdict.solver
        print(node, n.op, result.verdict.standing == honest.log().root, f and f.reason, f and f.place.describe(), result.game.moves, result.refused, result.game.now, result.sent_bytes.values())
