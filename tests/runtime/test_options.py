"""Settings: environment, keyword and block are one setting; wrong ones are named."""

from __future__ import annotations

import contextvars
import threading

import pytest

from weft.options import (
    DISABLE_NAMES,
    ENABLE_NAMES,
    InvalidOptionValue,
    Options,
    UnknownOption,
    UnrecognizedDisableOption,
    UnrecognizedEnableOption,
    check_option_names,
    current,
    describe,
    options,
    refresh_environment,
    split_option_list,
)


def first_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    return str(error.value).splitlines()[0]


def test_keyword_wins_over_block_and_block_over_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CHIP", "A100")
    refresh_environment()
    assert current().chip == "A100"
    with options(chip="H200"):
        assert current().chip == "H200"
        assert current(chip="B200").chip == "B200"
        with options(cache=False):
            assert (current().chip, current().cache) == ("H200", False)
    assert (current().chip, current().cache) == ("A100", True)


def test_the_environment_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert current().chip == "H100"
    monkeypatch.setenv("WEFT_CHIP", "A100")
    assert current().chip == "H100"
    refresh_environment()
    assert current().chip == "A100"


@pytest.mark.parametrize(("text", "value"), [("1", True), ("on", True), ("TRUE", True), ("0", False), ("off", False), ("no", False)])
def test_a_switch_is_spelled_in_several_ways(monkeypatch: pytest.MonkeyPatch, text: str, value: bool) -> None:
    monkeypatch.setenv("WEFT_FAST_MATH", text)
    refresh_environment()
    assert current().fast_math is value


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(UnknownOption) as error:
        options(dump_dirr="x")
    assert first_line(error) == "W700: there is no option 'dump_dirr'"
    assert "did you mean dump_dir" in str(error.value)


def test_an_unknown_variable_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_DUMPS", "cuda")
    refresh_environment()
    with pytest.raises(UnknownOption, match="there is no option 'dumps'"):
        current()


def test_a_value_that_is_not_allowed_names_the_allowed_ones() -> None:
    with pytest.raises(InvalidOptionValue) as error:
        current(emulate="sometimes")
    assert first_line(error) == "W701: option emulate (keyword) is 'sometimes'; allowed: auto, on, off"
    with pytest.raises(InvalidOptionValue, match="KIND in fusion"):
        current(dump="cuda,ptxx")
    with pytest.raises(InvalidOptionValue, match="0 or more"):
        current(cache_limit_mib=-1)
    with pytest.raises(InvalidOptionValue, match="cache=off keeps nothing"):
        current(cache_dir="")


def test_a_failing_block_leaves_the_settings_as_they_were() -> None:
    with pytest.raises(ZeroDivisionError), options(chip="B200"):
        raise ZeroDivisionError
    assert current().chip == "H100"


def test_a_block_is_of_one_thread_and_can_be_taken_along() -> None:
    seen: list[str] = []
    with options(chip="B200"):
        context = contextvars.copy_context()
        for target in (lambda: seen.append(current().chip), lambda: context.run(lambda: seen.append(current().chip))):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
    assert seen == ["H100", "B200"]


def test_one_options_object_can_be_entered_twice() -> None:
    block = options(chip="B200")
    with block, options(chip="A100"), block:
        assert current().chip == "B200"
    assert current().chip == "H100"


@pytest.mark.parametrize(
    ("dump", "kind", "step", "kernel", "is_on"),
    [
        ("", "cuda", "", "", False),
        ("cuda,passes", "cuda", "", "softmax_1", True),
        ("passes:insert_*@softmax*", "passes", "insert_syncs", "softmax_1", True),
        ("passes:insert_*@softmax*", "passes", "index", "softmax_1", False),
        ("passes:insert_*@softmax*", "passes", "insert_syncs", "layernorm", False),
        ("passes:@softmax*", "passes", "index", "softmax_1", True),
        ("passes:index", "cuda", "index", "", False),
    ],
)
def test_dump_can_be_limited_to_a_step_and_a_kernel(dump: str, kind: str, step: str, kernel: str, is_on: bool) -> None:
    assert current(dump=dump).is_dumped(kind, step, kernel) is is_on


def test_only_settings_that_change_code_are_in_the_key() -> None:
    plain = Options().code_key()
    assert Options().with_values({"dump": "cuda", "cache": False, "chip": "B200", "seed": 3}).code_key() == plain
    for change in ({"fast_math": True}, {"device_line_info": True}, {"check": "races"}):
        assert Options().with_values(change).code_key() != plain


def test_every_setting_is_described() -> None:
    text = describe()
    for name in Options.__dataclass_fields__:
        assert f"WEFT_{name.upper()} " in text


def test_names_of_nvfuser_are_checked() -> None:
    check_option_names(ENABLE_NAMES, DISABLE_NAMES)
    check_option_names(["id_model_extra_validation"], ["kernel_reuse"])
    with pytest.raises(RuntimeError, match="Unrecognized enable_option: fuse_matmull") as enable:
        check_option_names(enable=["fuse_matmull"])
    assert isinstance(enable.value, UnrecognizedEnableOption) and "did you mean fuse_matmul" in str(enable.value)
    with pytest.raises(UnrecognizedDisableOption, match="Unrecognized disable_option: fuse_matmul"):
        check_option_names(disable=["fuse_matmul"])


def test_nvfuser_options_take_arguments() -> None:
    assert split_option_list(" a, static_fusion_count(1, 2),b ") == {"a": (), "static_fusion_count": ("1", "2"), "b": ()}
    assert split_option_list("") == {}
