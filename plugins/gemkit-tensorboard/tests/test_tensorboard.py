"""The observer keeps its contract, and its logs can be read back."""

import gemkit_tensorboard
import pytest
from gemkit_tensorboard import TensorBoard
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from gemkit import load_plugins, search
from gemkit.core.events import Collapsed, Froze
from gemkit.testing import CPU, PLAN, contract, tiny_data, tiny_net

test_plugin = contract(gemkit_tensorboard)


def read(folder):
    log = EventAccumulator(str(folder))
    log.Reload()
    return log


def test_a_search_can_be_read_back(tmp_path):
    listener, heard = TensorBoard().listen(tmp_path), []
    recipe = load_plugins(only=()).recipe("gem_miner", options={"schedule.every": 1})
    search(
        recipe,
        tiny_net(),
        tiny_data(),
        density=0.5,
        plan=PLAN,
        runtime=CPU,
        on_collapse="warn",
        observers=[listener, heard.append],
    )
    log = read(tmp_path / "tensorboard")
    epochs = log.Scalars("search/loss")
    assert [scalar.step for scalar in epochs] == [1, 2, 3]
    losses = [event.loss for event in heard if hasattr(event, "loss")]
    assert [scalar.value for scalar in epochs] == pytest.approx(losses)
    froze = [event for event in heard if isinstance(event, Froze)]
    assert [scalar.step for scalar in log.Scalars("freeze/kept")] == [e.step for e in froze]
    assert log.Scalars("freeze/target")[-1].value == pytest.approx(0.5)


def test_messages_are_logged_and_the_folder_can_be_chosen(tmp_path):
    TensorBoard(folder="elsewhere").listen(tmp_path)(Collapsed(3, (), "nothing is left"))
    assert "messages/text_summary" in read(tmp_path / "elsewhere").Tags()["tensors"]
