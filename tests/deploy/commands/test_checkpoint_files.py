"""Files beside config.json that anybody may have put there."""

from pathlib import Path

from quire.deploy.commands.checkpoint_files import given_files


def test_a_directory_of_the_users_may_have_the_name_of_one_that_is_made(tmp_path: Path) -> None:
    folder = tmp_path / "from-gguf"
    folder.mkdir()
    assert given_files(folder) == []
    (folder / "model.safetensors").touch()
    assert given_files(folder) == []
