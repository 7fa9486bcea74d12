// Package protocol has the numbers of errors that sarama returns.
package protocol

import (
	"errors"

	"github.com/IBM/sarama"
)

// Code returns the error's number in the protocol; 0 without an error, -1 for any other.
func Code(err error) int {
	var known sarama.KError
	if err == nil {
		return 0
	}
	if errors.As(err, &known) {
		return int(known)
	}
	return -1
}
