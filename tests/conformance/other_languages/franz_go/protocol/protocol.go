// Package protocol has the names of errors that franz-go returns.
package protocol

import (
	"errors"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Name returns the error's name in the protocol; "NONE" without an error.
func Name(err error) string {
	var known *kerr.Error
	if err == nil {
		return "NONE"
	}
	if errors.As(err, &known) {
		return known.Message
	}
	return err.Error()
}
