// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"cloudnative.tw/drover/internal/driver"
)

// explainError wraps an error about the connection in driver.ErrUnavailable, and says what was
// done. Any other error, such as "not found", keeps its kind of package errdefs for the caller.
func (e *Client) explainError(action string, isChange bool, err error) error {
	switch {
	case errors.Is(err, driver.ErrUnavailable), errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", action, err)
	case errors.Is(err, context.DeadlineExceeded) && isChange:
		return fmt.Errorf("%s: the Docker engine at %s did not answer in time: %w", action, e.address, err)
	case errors.Is(err, context.DeadlineExceeded):
		return driver.Errorf(driver.ErrUnavailable, "%s: the Docker engine at %s did not answer in time: %w", action, e.address, err)
	case IsConnectionLost(err):
		return driver.Errorf(driver.ErrUnavailable, "%s: the Docker engine at %s is unreachable: %w", action, e.address, err)
	}
	return fmt.Errorf("%s: %w", action, daemonError{err})
}

// IsConnectionLost reports whether err means that the engine does not answer, or does not
// support this client's API version.
func IsConnectionLost(err error) bool {
	if IsContextError(err) {
		return false
	}
	return IsNetworkError(err) || errdefs.IsUnavailable(err) || unsupportedVersion.MatchString(err.Error())
}

// IsNetworkError reports whether err is about the connection. Such an error does not contain
// text from the engine.
func IsNetworkError(err error) bool {
	_, isOperation := errors.AsType[*net.OpError](err)
	return isOperation || client.IsErrConnectionFailed(err) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// IsContextError reports whether the call ended because its context did.
func IsContextError(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// unsupportedVersion matches the error of an engine that refuses the negotiated version,
// because the engine was replaced by an older or a much newer one.
var unsupportedVersion = regexp.MustCompile(`client version \S+ is too (old|new)`)

// daemonError is an error without the prefix that Docker's client adds to the engine's message.
type daemonError struct{ error }

func (e daemonError) Error() string {
	return strings.TrimPrefix(e.error.Error(), "Error response from daemon: ")
}

func (e daemonError) Unwrap() error { return e.error }
