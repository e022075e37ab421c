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
)

// The ends of streams that no failure of the stream's own is the cause of.
var (
	errFinished   = errors.New("finished")
	errClientLeft = errors.New("the client left")

	errNoUser   = failure(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "Unauthorized")
	errNotKnown = failure(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "the cluster no longer accepts the certificate of the client")
	errStopping = unavailable("the controller stops: try again, another one may serve this stream")
	errStopped  = failure(http.StatusConflict, streams.ReasonServerStopped, "the server has stopped")
	errTooSlow  = failure(http.StatusRequestTimeout, metav1.StatusReasonTimeout, "the client did not read for too long")
	errSilent   = failure(http.StatusRequestTimeout, metav1.StatusReasonTimeout, "the client did not answer for too long")
)

// ErrStarting is the answer until a Handler runs.
var ErrStarting error = startingError()

// failure returns an error that is answered as it is.
func failure(code int32, reason metav1.StatusReason, format string, args ...any) *apierrors.StatusError {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: code, Reason: reason, Message: fmt.Sprintf(format, args...),
	}}
}

func badRequest(format string, args ...any) *apierrors.StatusError {
	return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest, format, args...)
}

func unsupported(format string, args ...any) *apierrors.StatusError {
	return failure(http.StatusNotImplemented, streams.ReasonUnsupported, format, args...)
}

func unavailable(format string, args ...any) *apierrors.StatusError {
	return failure(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, format, args...)
}

// startingError makes clients try again by themselves.
func startingError() *apierrors.StatusError {
	err := unavailable("the controller starts")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
	return err
}

// exitCode returns how a command ended: nil for 0, else the Status that a kubelet sends. Codes outside of
// 0 to 255, which guests other than Linux have, are an error: clients cannot exit with them.
func exitCode(code int) error {
	switch {
	case code == 0:
		return nil
	case code < 0 || code > 255:
		return failure(http.StatusInternalServerError, metav1.StatusReasonInternalError,
			"the command ended with exit code %d, which no client can exit with: 0 to 255 are possible", code)
	}
	err := failure(http.StatusInternalServerError, remotecommand.NonZeroExitCodeReason, "command terminated with non-zero exit code: %d", code)
	err.ErrStatus.Details = &metav1.StatusDetails{Causes: []metav1.StatusCause{{
		Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(code),
	}}}
	return err
}

// statusOf returns the Status for an error, or for success.
func statusOf(err error) metav1.Status {
	status := metav1.Status{Status: metav1.StatusSuccess}
	if err != nil {
		status = asFailure(err).ErrStatus
	}
	status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
	return status
}

// asFailure says in terms of HTTP what a driver has answered.
func asFailure(err error) *apierrors.StatusError {
	if known, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return known
	}
	switch {
	case errors.Is(err, driver.ErrNotFound):
		return failure(http.StatusConflict, metav1.StatusReasonConflict, "there is no server: %v", err)
	case errors.Is(err, driver.ErrConsoleTaken):
		return failure(http.StatusConflict, streams.ReasonConsoleTaken, "%v", err)
	case errors.Is(err, driver.ErrRetry):
		return failure(http.StatusConflict, metav1.StatusReasonConflict, "%v", err)
	case errors.Is(err, driver.ErrCommandNotFound):
		return failure(http.StatusUnprocessableEntity, streams.ReasonCommandNotFound, "%v", err)
	case errors.Is(err, driver.ErrCommandNotExecutable):
		return failure(http.StatusUnprocessableEntity, streams.ReasonCommandNotExecutable, "%v", err)
	case errors.Is(err, driver.ErrInvalid):
		return failure(http.StatusUnprocessableEntity, metav1.StatusReasonInvalid, "%v", err)
	case errors.Is(err, driver.ErrUnsupported):
		return unsupported("%v", err)
	case errors.Is(err, driver.ErrUnavailable):
		return unavailable("%v", err)
	case errors.Is(err, context.DeadlineExceeded):
		return failure(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "the engine did not answer in time")
	}
	return failure(http.StatusInternalServerError, metav1.StatusReasonInternalError, "%v", err)
}

// Refuse answers a request whose stream does not begin.
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
		text = nil // a Status can be marshalled
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

// writeError says why a write to the client failed.
func writeError(err error) error {
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return errTooSlow
	}
	return errClientLeft
}

// describeEnd describes an end for the log. It must not contain what was transferred, nor
// what a foreign answer said.
func describeEnd(err error) string {
	switch {
	case err == nil:
		return errFinished.Error()
	case errors.Is(err, errClientLeft):
		return errClientLeft.Error()
	}
	status := asFailure(err).ErrStatus
	if status.Details != nil && len(status.Details.Causes) == 1 && status.Reason == remotecommand.NonZeroExitCodeReason {
		return "exit code " + status.Details.Causes[0].Message
	}
	return string(status.Reason)
}
