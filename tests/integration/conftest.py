"""Whatever the API answers in these tests stands in its OpenAPI document."""

from tests.unit.server.documented import answers_are_documented as answers_are_documented
