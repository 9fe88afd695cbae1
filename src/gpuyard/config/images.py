"""`[images]`: which images there are."""

from pathlib import Path

from gpuyard.config.sections import SettingsSection
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.images import IMAGES, Image, read_catalogue


class ImageSettings(SettingsSection):
    """`catalogue`: a file of images that precede the built-in ones (see the guide on
    images).
    """

    catalogue: Path | None = None

    def read(self) -> tuple[Image, ...]:
        """The images of the catalogue and the built-in ones; InvalidInputError names
        the row and the field.
        """
        if self.catalogue is None:
            return IMAGES
        try:
            return read_catalogue(self.catalogue.expanduser().read_text())
        except OSError as error:
            fault = f"is {self.catalogue}, which cannot be read: {error.strerror}"
            raise InvalidInputError.of(
                "images.catalogue", fault, "name a TOML file"
            ) from None
