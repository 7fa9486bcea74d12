module conformance.test/shared

go 1.23.0
