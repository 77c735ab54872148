"""What an unset sampling field gets: what generation_config.json states, else the default of the API."""

import json

import msgspec
import pytest

from quire.frontend.request.defaults import FIELDS, Defaults, load_defaults

STATED = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}


def written(folder, fields):
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "eos_token_id": [1, 2], **fields}))
    return str(folder)


def test_every_field_has_a_row_here():
    assert set(FIELDS) == set(STATED) == {field.name for field in msgspec.structs.fields(Defaults)}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("how", ["left out", "null"])
def test_what_the_file_leaves_out_is_the_apis_default_and_the_rest_is_the_files(field, how, tmp_path):
    fields = {**STATED, field: None}
    if how == "left out":
        del fields[field]
    defaults = msgspec.structs.asdict(load_defaults(written(tmp_path, fields)))
    assert defaults == {**STATED, field: getattr(Defaults(), field)}


def test_stated_values_are_those_the_library_reads_and_only_its_top_k_of_fifty_is_not_taken_unsaid(tmp_path):
    from transformers import GenerationConfig

    theirs = GenerationConfig.from_pretrained(written(tmp_path, STATED))
    assert {field: getattr(theirs, field) for field in FIELDS} == STATED
    unsaid = GenerationConfig()._get_default_generation_params()
    assert {field: unsaid[field] for field in FIELDS if field in unsaid and field != "top_k"}.items() <= (
        msgspec.structs.asdict(Defaults()).items()
    )
    assert (unsaid["top_k"], Defaults().top_k) == (50, 0)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"top_k": "5"}', b'{"temperature": -1}', b'{"a": "\xff"}', b'{"a":' + b"[" * 100_000],
)
def test_a_file_that_does_not_read_is_refused_with_the_way_out(content, tmp_path):
    (tmp_path / "generation_config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"generation_config\.json.*--generation-config vllm"):
        load_defaults(str(tmp_path))
