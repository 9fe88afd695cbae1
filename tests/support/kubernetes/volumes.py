"""Volumes: folders of this host that containers see at their mount paths."""

import os
import stat
from pathlib import Path

from tests.support.kubernetes.environment import ConfigError, read
from tests.support.kubernetes.objects import Object, namespace
from tests.support.kubernetes.store import Store

Mount = tuple[str, str, bool]


class MountError(Exception):
    """A volume cannot be set up (yet)."""


class Volumes:
    """The volumes of all pods; `folder` holds them, and those of the claims."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder

    def claim(self, space: str, called: str) -> Path:
        """Where a claim's data lies."""
        path = self._folder / "claims" / space / called
        path.mkdir(parents=True, exist_ok=True)
        return path

    def prepare(self, pod: Object, folder: Path) -> dict[str, Path]:
        """Make them all; by their names. MountError."""
        found = {
            each["name"]: self._prepare(pod, each, folder / each["name"])
            for each in pod["spec"].get("volumes") or ()
        }
        group = (pod["spec"].get("securityContext") or {}).get("fsGroup")
        if group is not None:
            for each in pod["spec"].get("volumes") or ():
                if "hostPath" not in each:
                    _give(found[each["name"]], group)
        return found

    def _prepare(self, pod: Object, volume: Object, folder: Path) -> Path:
        if "persistentVolumeClaim" in volume:
            return self.claim(
                namespace(pod), volume["persistentVolumeClaim"]["claimName"]
            )
        if "hostPath" in volume:
            return _host(volume)
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
        for kind in ("secret", "configMap"):
            if kind in volume:
                self._write(pod, kind, volume, folder)
        return folder

    def _write(self, pod: Object, kind: str, volume: Object, folder: Path) -> None:
        source = volume[kind]
        try:
            data = read(self._store, pod, kind, source) or {}
        except ConfigError as error:
            raise MountError(
                f'MountVolume.SetUp failed for volume "{volume["name"]}" : {error}'
            ) from None
        items: list[Object] = source.get("items") or [
            {"key": key, "path": key} for key in data
        ]
        for item in items:
            if item["key"] not in data and not source.get("optional"):
                where = f"references non-existent {kind.lower()} key: {item['key']}"
                raise MountError(
                    f'MountVolume.SetUp failed for volume "{volume["name"]}" : {where}'
                )
            path = folder / item["path"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.get(item["key"], b""))
            path.chmod(item.get("mode") or source.get("defaultMode") or 0o644)


def _give(folder: Path, group: int) -> None:
    """Let a group write to all of a volume, as `fsGroup` says (`OnRootMismatch`)."""
    state = folder.stat()
    if state.st_gid == group and state.st_mode & stat.S_ISGID:
        return
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            continue
        mode = path.stat().st_mode
        os.chown(path, -1, group)
        path.chmod(mode | (0o2070 if path.is_dir() else 0o060))


def _host(volume: Object) -> Path:
    path = Path(volume["hostPath"]["path"])
    kind = volume["hostPath"].get("type") or ""
    wrong = {"Directory": not path.is_dir(), "File": not path.is_file()}.get(kind)
    if wrong:
        what = f"hostPath type check failed: {path} is not a {kind.lower()}"
        raise MountError(
            f'MountVolume.SetUp failed for volume "{volume["name"]}" : {what}'
        )
    if kind == "FileOrCreate":
        path.touch()
    elif kind in ("", "DirectoryOrCreate") and not path.exists():
        path.mkdir(parents=True)
    return path


def mounts(container: Object, folders: dict[str, Path]) -> list[Mount]:
    """What the launcher is to mount: source, path inside, whether it can only be
    read.
    """
    found: list[Mount] = []
    for each in container.get("volumeMounts") or ():
        source = folders[each["name"]]
        if each.get("subPath"):
            source = source / each["subPath"]
            _make_below(folders[each["name"]], source)
        found.append(
            (
                str(source),
                os.path.normpath(each["mountPath"]),
                bool(each.get("readOnly")),
            )
        )
    return found


def _make_below(volume: Path, folder: Path) -> None:
    """Make the folder of a `subPath` as the kubelet does: with the rights of those
    above it.
    """
    missing: list[Path] = []
    while not folder.exists() and folder != volume:
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        above = each.parent.stat()
        each.mkdir()
        os.chown(each, -1, above.st_gid)
        each.chmod(stat.S_IMODE(above.st_mode))
