"""The tests are compiled as pytest compiles them."""

from pathlib import Path

from _pytest.assertion import rewrite

from tests.support.bytecode import compile_file


def test_pytest_finds_a_file_whose_assertions_are_rewritten(tmp_path: Path) -> None:
    source = tmp_path / "test_one.py"
    source.write_text("def test_one():\n    assert 1 == 2\n")
    compile_file(source)
    kept = rewrite.get_cache_dir(source) / f"test_one{rewrite.PYC_TAIL}"
    code = rewrite._read_pyc(source, kept)
    assert code and "_pytest.assertion.rewrite" in code.co_names
    source.write_text("def test_one():\n    assert 2 == 2\n")
    assert rewrite._read_pyc(source, kept) is None, "it has changed since"
    compile_file(source)
    assert rewrite._read_pyc(source, kept)
