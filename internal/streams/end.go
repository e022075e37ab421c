// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/terminal"
)

// Causes of a stream's end other than a failure of the engine.
var (
	errFinished   = errors.New("finished")
	errClientLeft = errors.New("the client left")

	errNoUser   = newStatusError(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	errNotKnown = newStatusError(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "the cluster no longer accepts the certificate of the client")
	errStopping = unavailableError("the controller is stopping: try again, since another replica may serve this stream")
	errStopped  = newStatusError(http.StatusConflict, streams.ReasonServerStopped, "the server has stopped")
	errTooSlow  = newStatusError(http.StatusRequestTimeout, metav1.StatusReasonTimeout, "the client did not read for too long")
	errSilent   = newStatusError(http.StatusRequestTimeout, metav1.StatusReasonTimeout, "the client did not answer for too long")
)

// ErrStarting is the answer to a request that comes before Handler.Start.
var ErrStarting error = startingError()

// newStatusError returns an error that clients receive unchanged.
func newStatusError(code int32, reason metav1.StatusReason, format string, args ...any) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: fmt.Sprintf(format, args...),
	}}
}

func badRequest(format string, args ...any) *apierrors.StatusError {
	return newStatusError(http.StatusBadRequest, metav1.StatusReasonBadRequest, format, args...)
}

func unsupportedError(format string, args ...any) *apierrors.StatusError {
	return newStatusError(http.StatusNotImplemented, streams.ReasonUnsupported, format, args...)
}

func unavailableError(format string, args ...any) *apierrors.StatusError {
	return newStatusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, format, args...)
}

// startingError returns an error after which clients of Kubernetes try again by themselves, after a second.
func startingError() *apierrors.StatusError {
	err := unavailableError("the controller is starting")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// exitError returns nil for exit code 0, and otherwise the Status that a kubelet sends. Guests other than Linux have
// codes outside of 0 to 255. Clients cannot exit with such a code, so exitError returns a failure of the stream.
func exitError(code int) error {
	switch {
	case code == 0:
		return nil
	case code < 0 || code > 255:
		return newStatusError(http.StatusInternalServerError, metav1.StatusReasonInternalError,
			"the command ended with exit code %d, which no client can exit with: 0 to 255 are possible", code)
	}
	err := newStatusError(http.StatusInternalServerError, remotecommand.NonZeroExitCodeReason, "command terminated with non-zero exit code: %d", code)
	err.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{
		Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(code),
	}}}
	return err
}

// statusOf returns the Status for an error, or for success.
func statusOf(err error) metav1.Status {
	status := metav1.Status{Status: metav1.StatusSuccess}
	if err != nil {
		status = statusErrorOf(err).ErrStatus
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return status
}

// statusErrorOf translates an error, such as a driver's, to a Status with an HTTP code.
func statusErrorOf(err error) *apierrors.StatusError {
	if known, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return known
	}
	if lost, ok := errors.AsType[*terminal.LostOutputError](err); ok {
		return newStatusError(http.StatusGone, streams.ReasonOutputLost, "%s", streams.FormatLostOutput(lost.Stdout, lost.Stderr))
	}
	switch {
	case errors.Is(err, driver.ErrNotFound):
		return newStatusError(http.StatusConflict, metav1.StatusReasonConflict, "there is no server: %v", err)
	case errors.Is(err, driver.ErrBusy):
		return newStatusError(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "%v", err)
	case errors.Is(err, driver.ErrConsoleTaken):
		return newStatusError(http.StatusConflict, streams.ReasonConsoleTaken, "%v", err)
	case errors.Is(err, driver.ErrRetry):
		return newStatusError(http.StatusConflict, metav1.StatusReasonConflict, "%v", err)
	case errors.Is(err, driver.ErrCommandNotFound):
		return newStatusError(http.StatusUnprocessableEntity, streams.ReasonCommandNotFound, "%v", err)
	case errors.Is(err, driver.ErrCommandNotExecutable):
		return newStatusError(http.StatusUnprocessableEntity, streams.ReasonCommandNotExecutable, "%v", err)
	case errors.Is(err, driver.ErrInvalid):
		return newStatusError(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "%v", err)
	case errors.Is(err, driver.ErrUnsupported):
		return unsupportedError("%v", err)
	case errors.Is(err, driver.ErrUnavailable):
		return unavailableError("%v", err)
	case errors.Is(err, context.DeadlineExceeded):
		return newStatusError(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "the engine did not answer in time")
	}
	return newStatusError(http.StatusInternalServerError, metav1.StatusReasonInternalError, "%v", err)
}

// Refuse answers a request with an error instead of a stream.
func Refuse(w http.ResponseWriter, err error) {
	status := statusOf(err)
	if details := status.Details; details != nil && details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(details.RetryAfterSeconds)))
	}
	if status.Code == http.StatusMethodNotAllowed {
		w.Header().Set("Allow", http.MethodGet)
	}
	text, err := json.Marshal(status)
	if err != nil {
		text = nil // cannot happen for a Status
	}
	setHeader(w, "application/json")
	w.WriteHeader(int(status.Code))
	_, _ = w.Write(text)
}

func setHeader(w http.ResponseWriter, contentType string) {
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
}

// writeError returns the cause of a stream's end, given the error of a write to the client.
func writeError(err error) error {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return errTooSlow
	}
	return errClientLeft
}

// describeEnd describes a stream's end for the log. It contains neither transferred data nor the text of
// another program's answer, since both may be secret.
func describeEnd(err error) string {
	switch {
	case err == nil:
		return errFinished.Error()
	case errors.Is(err, errClientLeft):
		return errClientLeft.Error()
	}
	status := statusErrorOf(err).ErrStatus
	if status.Details != nil && len(status.Details.Causes) == 1 && status.Reason == remotecommand.NonZeroExitCodeReason {
		return "exit code " + status.Details.Causes[0].Message
	}
	return string(status.Reason)
}
