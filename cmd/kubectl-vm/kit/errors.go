// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
)

// ExitError ends the program with an exit code. If Err is nil, the verb has already printed why.
type ExitError struct {
	Code int
	Err  error
}

// Error implements error.
func (e *ExitError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit code %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns the cause.
func (e *ExitError) Unwrap() error { return e.Err }

// Report prints an error as kubectl does, and returns the exit code of the program. A failed write of the output is an
// error too. It replaces the error of a verb that was canceled because of the failed write.
func (o *Options) Report(err error) int {
	if failed := printable.NewOutput(o.Out).Err(); failed != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = fmt.Errorf("print: %w", failed)
	}
	if err == nil {
		return 0
	}
	code := 1
	if exit := (*ExitError)(nil); errors.As(err, &exit) {
		if code = exit.Code; exit.Err == nil {
			return code
		}
	}
	switch {
	case errors.Is(err, syscall.EPIPE) && printable.NewOutput(o.Out).Err() != nil:
		return exitBrokenPipe
	case errors.Is(err, context.Canceled):
		return exitInterrupted
	}
	lines := strings.Split(o.DescribeError(err), "\n")
	for i, line := range lines { // the text may contain names and answers from elsewhere
		lines[i] = printable.Line(line)
	}
	_, _ = fmt.Fprintf(o.ErrOut, "error: %s\n", strings.Join(lines, "\n"))
	return code
}

// The exit codes of shells for a program that Ctrl-C has ended, and for one that wrote to a pipe without a reader.
const (
	exitInterrupted = 130
	exitBrokenPipe  = 141
)

// DescribeError returns what to print about an error.
func (o *Options) DescribeError(err error) string {
	if IsMissingAPI(err) {
		return "the cluster does not know VirtualMachines: Drover is not installed in it, or --context names another cluster"
	}
	failed := (*url.Error)(nil)
	if !errors.As(err, &failed) {
		return strings.TrimPrefix(err.Error(), "error: ")
	}
	if failed.Timeout() && *o.Config.Timeout != "0" {
		return fmt.Sprintf("%s did not answer within %s (--request-timeout)", serverOf(failed), *o.Config.Timeout)
	}
	if isStreamRequest(failed) {
		return fmt.Sprintf("cannot reach the streams of VMs at %s, the address in ConfigMap %s/%s: %v",
			serverOf(failed), streamsapi.ConfigMapNamespace, streamsapi.ConfigMapName, failed.Err)
	}
	text := fmt.Sprintf("cannot reach the cluster at %s: %v", serverOf(failed), failed.Err)
	if serverOf(failed) == defaultServer {
		text += "; no cluster is configured, see --kubeconfig and KUBECONFIG"
	}
	return text
}

// defaultServer is the address that client-go uses if there is no kubeconfig.
const defaultServer = "http://localhost:8080"

// isStreamRequest reports whether the failed request was for a stream, so that another server than the API server may
// have served it.
func isStreamRequest(failed *url.Error) bool {
	u, err := url.Parse(failed.URL)
	return err == nil && strings.HasPrefix(u.Path, streamsapi.PathPrefix+"/")
}

// serverOf returns the address of the server of a failed request.
func serverOf(failed *url.Error) string {
	u, err := url.Parse(failed.URL)
	if err != nil {
		return failed.URL
	}
	return u.Scheme + "://" + u.Host
}

// IsMissingAPI reports whether the API server does not know VirtualMachines. It then answers with
// a plain 404 without a Status.
func IsMissingAPI(err error) bool {
	status := apierrors.APIStatus(nil)
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	if details == nil {
		return true
	}
	for _, cause := range details.Causes {
		if cause.Type == metav1.CauseTypeUnexpectedServerResponse {
			return true
		}
	}
	return false
}
