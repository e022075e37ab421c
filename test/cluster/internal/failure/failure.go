// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package failure describes a cluster that did not start.
package failure

import (
	"fmt"
	"strings"
)

// OfStart returns the error of a start: the output of the cluster's programs, and the cause below
// it, so that a terminal shows the cause last.
func OfStart(cause, cleanup error, printed string) error {
	if cleanup != nil {
		cause = fmt.Errorf("%w; it is not removed either: %w", cause, cleanup)
	}
	if printed = strings.TrimRight(printed, "\n"); printed == "" {
		return fmt.Errorf("start a cluster: %w", cause)
	}
	return fmt.Errorf("the cluster's programs printed:\n%s\n\nstart a cluster: %w", printed, cause)
}
