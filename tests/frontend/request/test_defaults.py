"""What an unset sampling field gets: what generation_config.json states, else the default of the API."""

import json

import msgspec
import pytest

from quire.frontend.config import SamplingOverrides
from quire.frontend.http.fields.sampling import SamplingFields
from quire.frontend.request.defaults import FIELDS, Defaults, load_defaults, overridden
from quire.frontend.request.validate import sampling_params
from quire.proto.api import GenerateRequest
from quire.proto.messages.params import ParameterError

STATED = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}


def written(folder, fields):
    (folder / "generation_config.json").write_text(json.dumps({"do_sample": True, "eos_token_id": [1, 2], **fields}))
    return str(folder)


def test_every_field_has_a_row_here():
    of_deployment = {"max_tokens"}
    assert {*FIELDS, *of_deployment} == {*STATED, *of_deployment} == set(Defaults.__struct_fields__)


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("how", ["left out", "null"])
def test_what_the_file_leaves_out_is_the_apis_default_and_the_rest_is_the_files(field, how, tmp_path):
    fields = {**STATED, field: None}
    if how == "left out":
        del fields[field]
    defaults = msgspec.structs.asdict(load_defaults(written(tmp_path, fields)))
    assert defaults == {**STATED, field: getattr(Defaults(), field), "max_tokens": None}


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
    ("stated", "meant"), [(-1, 0), (-1.0, 0), (0, 0), (0.0, 0), (20.0, 20), (20, 20), (2.0**40, 1 << 40), (1, 1)]
)
def test_a_top_k_means_the_same_in_a_models_files_a_deployment_and_a_request(stated, meant, tmp_path):
    assert load_defaults(written(tmp_path, {"top_k": stated})).top_k == meant
    assert overridden(Defaults(top_k=3), msgspec.convert({"top_k": stated}, SamplingOverrides)).top_k == meant
    assert SamplingFields(top_k=stated).generate_request("x").top_k == stated
    request = msgspec.json.decode(json.dumps({"top_k": stated}), type=SamplingFields).generate_request("x")
    assert sampling_params(request, Defaults(top_k=3), 0, 1, ()).top_k == meant


@pytest.mark.parametrize("stated", [20.5, -2, -1.5, True, "5", [5], 1e300, 10**30])
def test_a_top_k_that_means_nothing_is_refused_everywhere_in_the_same_words(stated, tmp_path):
    words = r"top_k: must be an integer in \[0, 9223372036854775807\], got "
    with pytest.raises(ValueError, match=words):
        load_defaults(written(tmp_path, {"top_k": stated}))
    if isinstance(stated, int | float) and stated is not True:  # else the types of the fields refuse it
        with pytest.raises(ValueError, match=words):
            msgspec.convert({"top_k": stated}, SamplingOverrides)
        with pytest.raises(ParameterError, match=words):
            sampling_params(GenerateRequest(input="x", top_k=stated), Defaults(), 0, 1, ())


def test_recommended_sampling_that_is_not_served_is_said(tmp_path, caplog):
    neutral = {"typical_p": 1.0, "num_beams": 1, "no_repeat_ngram_size": 0, "xtc_probability": 0.0, "mirostat": 0}
    load_defaults(written(tmp_path, {**neutral, "sequence": None}))
    assert not caplog.records
    load_defaults(written(tmp_path, {**neutral, "mirostat": 2, "typical_p": 0.9, "sequence": "top_k;temperature"}))
    (record,) = caplog.records
    said = "is left out: typical_p 0.9, mirostat 2, sequence 'top_k;temperature'"
    assert record.getMessage().endswith(said)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b'{"top_k": "5"}', b'{"temperature": -1}', b'{"a": "\xff"}', b'{"a":' + b"[" * 100_000],
)
def test_a_file_that_does_not_read_is_refused_with_the_way_out(content, tmp_path):
    (tmp_path / "generation_config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"generation_config\.json.*--generation-config vllm"):
        load_defaults(str(tmp_path))
