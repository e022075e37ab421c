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

// ExitError ends the program with a certain exit code. If Err is nil, everything that there is to
// say has been printed.
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

// Report prints an error as kubectl does, and returns the exit code of the program. A failed write of the output
// is an error too, and replaces that of a verb which it has canceled.
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
	for i, line := range lines { // it may be about names and answers of others
		lines[i] = printable.Line(line)
	}
	_, _ = fmt.Fprintf(o.ErrOut, "error: %s\n", strings.Join(lines, "\n"))
	return code
}

// The exit codes of programs that Ctrl-C ended, and that wrote to a pipe without a reader, as shells have them.
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
	if isOfStreams(failed) {
		return fmt.Sprintf("cannot reach the streams of VMs at %s, the address in ConfigMap %s/%s: %v",
			serverOf(failed), streamsapi.ConfigMapNamespace, streamsapi.ConfigMapName, failed.Err)
	}
	text := fmt.Sprintf("cannot reach the cluster at %s: %v", serverOf(failed), failed.Err)
	if serverOf(failed) == defaultServer {
		text += "; no cluster is configured, see --kubeconfig and KUBECONFIG"
	}
	return text
}

// defaultServer is where client-go looks for a cluster if there is no kubeconfig.
const defaultServer = "http://localhost:8080"

// isOfStreams reports whether a request that failed was one for a stream, which another server may serve.
func isOfStreams(failed *url.Error) bool {
	u, err := url.Parse(failed.URL)
	return err == nil && strings.HasPrefix(u.Path, streamsapi.PathPrefix+"/")
}

// serverOf returns the address of a request that failed.
func serverOf(failed *url.Error) string {
	u, err := url.Parse(failed.URL)
	if err != nil {
		return failed.URL
	}
	return u.Scheme + "://" + u.Host
}

// IsMissingAPI reports whether the API server knows no VirtualMachines, which it answers with
// a plain 404 and not with a Status.
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
