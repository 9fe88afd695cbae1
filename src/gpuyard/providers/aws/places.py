"""Where a machine of a region can start, and from which image."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from gpuyard.providers.aws.calls import AwsCalls
from gpuyard.providers.aws.config import AwsConfig
from gpuyard.providers.aws.errors import AwsError, Question
from gpuyard.providers.aws.kept import Kept
from gpuyard.providers.aws.launching import MachineImage
from gpuyard.providers.instances.api import SETTING

NEWEST_IMAGE = (
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04"
    "/latest/ami-id"
)
"""The SSM parameter with AWS's newest Deep Learning base image: driver, container
toolkit and Docker are installed.
"""
_KEPT_S = 3600.0


class LaunchPlaces:
    """Subnets and images of the configured regions, kept for an hour."""

    def __init__(self, settings: AwsConfig, calls: AwsCalls) -> None:
        self._settings = settings
        self._calls = calls
        self._subnets = {
            region: Kept(partial(self._read_subnets, region), _KEPT_S)
            for region in settings.regions
        }
        self._images: dict[tuple[str, str], Kept[MachineImage]] = {}

    async def subnets(self, region: str) -> Mapping[str, str]:
        """The configured subnet of each zone; empty if none are configured."""
        return await self._subnets[region]()

    async def _read_subnets(self, region: str) -> Mapping[str, str]:
        ids = self._settings.regions[region].subnets
        if not ids:
            return {}
        rows = self._calls.pages(
            region, "DescribeSubnets", "Subnets", SubnetIds=list(ids)
        )
        zones = {row["SubnetId"]: row["AvailabilityZone"] async for row in rows}
        # Of two subnets in a zone, the first in the settings is used.
        return {zones[subnet]: subnet for subnet in reversed(ids)}

    async def subnet(self, region: str, zone: str) -> str:
        """The subnet of a zone; empty for its default one."""
        subnets = await self.subnets(region)
        if subnets and zone not in subnets:
            raise _setting_error(
                Question("RunInstances", region),
                f"No subnet of providers.aws.regions.{region}.subnets is in {zone};"
                " name one.",
            )
        return subnets.get(zone, "")

    async def image(self, region: str, name: str = "") -> MachineImage:
        """The image of this name (an id or an SSM parameter), or the configured one."""
        name = name or self._settings.image_of(region) or NEWEST_IMAGE
        kept = self._images.get((region, name))
        if kept is None:
            kept = Kept(partial(self._read_image, region, name), _KEPT_S)
            self._images[region, name] = kept
        return await kept()

    async def _read_image(self, region: str, name: str) -> MachineImage:
        image_id = name
        if name.startswith("/"):
            answer = await self._calls.call("ssm", region, "GetParameter", Name=name)
            image_id = str(answer["Parameter"]["Value"])
        answer = await self._calls.call(
            "ec2", region, "DescribeImages", ImageIds=[image_id]
        )
        rows = answer.get("Images") or ()
        if not rows:
            raise _setting_error(
                Question("DescribeImages", region),
                f"There is no image {image_id} in {region}. See providers.aws.image and"
                f" providers.aws.regions.{region}.image.",
            )
        return _image(rows[0])


def _image(row: Mapping[str, Any]) -> MachineImage:
    root = str(row.get("RootDeviceName") or "/dev/sda1")
    disks: list[dict[str, Any]] = row.get("BlockDeviceMappings") or []
    sizes: dict[str, int] = {
        disk["DeviceName"]: disk["Ebs"].get("VolumeSize", 0)
        for disk in disks
        if "Ebs" in disk
    }
    return MachineImage(row["ImageId"], root, sizes.get(root, 0))


def _setting_error(question: Question, message: str) -> AwsError:
    return AwsError(f"AWS, {question.operation}: {message}", SETTING, "", message)
