// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package docker

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

// explain turns an error of the client into one of the contract. An error that only
// the caller can judge, such as "not found", keeps its kind of package errdefs.
func (d *Driver) explain(what string, changes bool, err error) error {
	switch {
	case errors.Is(err, driver.ErrUnavailable), errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, context.DeadlineExceeded) && changes:
		return fmt.Errorf("%s: the Docker engine at %s did not answer in time: %w", what, d.host, err)
	case errors.Is(err, context.DeadlineExceeded):
		return driver.Errorf(driver.ErrUnavailable, "%s: the Docker engine at %s did not answer in time: %w", what, d.host, err)
	case lost(err):
		return driver.Errorf(driver.ErrUnavailable, "%s: the Docker engine at %s is out of reach: %w", what, d.host, err)
	}
	return fmt.Errorf("%s: %w", what, daemonError{err})
}

// lost reports whether err means that there is no engine to talk to, or none that
// this client can continue to talk to.
func lost(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var op *net.OpError
	return client.IsErrConnectionFailed(err) || errdefs.IsUnavailable(err) ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op) ||
		badVersion.MatchString(err.Error())
}

// badVersion matches the error of an engine that was replaced by an older or a much
// newer one and refuses the negotiated version.
var badVersion = regexp.MustCompile(`client version \S+ is too (old|new)`)

// daemonError omits the prefix that the client puts before the engine's message.
type daemonError struct{ error }

func (e daemonError) Error() string { return words(e.error) }
func (e daemonError) Unwrap() error { return e.error }

func words(err error) string {
	return strings.TrimPrefix(err.Error(), "Error response from daemon: ")
}

// isGone reports whether the container or image does not exist.
func isGone(err error) bool { return errdefs.IsNotFound(err) }

// isConflict reports whether the container's state forbids the call, or its name is taken.
func isConflict(err error) bool { return errdefs.IsConflict(err) }

// vanishedError is the error for a container that disappeared during a call.
func vanishedError(id string) error {
	return driver.Errorf(driver.ErrRetry, "container %s went away meanwhile", shortID(id))
}

var (
	portTaken = regexp.MustCompile(`port is already allocated|address already in use`)
	noSpace   = regexp.MustCompile(`no space left on device`)
	noCommand = regexp.MustCompile(`(?i)no command specified`)
	cpuRange  = regexp.MustCompile(`(?i)range of CPUs is from`)
)

// explainCreate classifies the engine's refusal to create a container.
func explainCreate(spec driver.ServerSpec, image string, err error) error {
	switch text := err.Error(); {
	case isGone(err):
		return driver.WithReason(driver.ReasonImageUnavailable, driver.Errorf(driver.ErrRetry, "image %s: %w", image, err))
	case noCommand.MatchString(text):
		return driver.Errorf(driver.ErrInvalid, "spec.image.source: image %s has no command to run: %w", image, err)
	case noSpace.MatchString(text), cpuRange.MatchString(text):
		return driver.Errorf(driver.ErrExhausted, "%w", err)
	case errdefs.IsInvalidArgument(err):
		return driver.Errorf(driver.ErrInvalid, "the engine refuses %s/%s: %w", spec.Namespace, spec.Name, err)
	}
	return err
}

// explainStart classifies a failed start. The container is left as it is, so that
// the next try only has to start it.
func explainStart(spec driver.ServerSpec, err error) error {
	switch text := err.Error(); {
	case portTaken.MatchString(text):
		return driver.WithReason(driver.ReasonPortConflict, driver.Errorf(driver.ErrRetry, "%s is taken by another program or container: %w", takenPort(spec.Ports, text), err))
	case noSpace.MatchString(text):
		return driver.Errorf(driver.ErrExhausted, "%w", err)
	case isGone(err), isConflict(err), errdefs.IsInvalidArgument(err):
		return driver.Errorf(driver.ErrRetry, "%w", err)
	}
	return err
}

// takenPort names the field that the engine's message refers to.
func takenPort(ports []driver.Port, text string) string {
	for i, p := range ports {
		if p.HostPort != 0 && regexp.MustCompile(fmt.Sprintf(`:%d\b`, p.HostPort)).MatchString(text) {
			return fmt.Sprintf("spec.ports[%d].hostPort: host port %d", i, p.HostPort)
		}
	}
	return "spec.ports: a host port"
}
