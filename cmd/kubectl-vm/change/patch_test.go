// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package change

import (
	"context"
	"errors"
	"fmt"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"cloudnative.tw/drover/test/assert"
)

// TestRetryOnConflict checks that a change which failed is never taken for one that was made, such as
// one whose request has timed out.
func TestRetryOnConflict(t *testing.T) {
	t.Parallel()
	conflict := apierrors.NewConflict(schema.GroupResource{Resource: "virtualmachines"}, "web", errors.New("the object has been modified"))
	for name, results := range map[string][]error{
		"made":              {nil},
		"after a conflict":  {conflict, nil},
		"timed out":         {fmt.Errorf("delete: %w", context.DeadlineExceeded)},
		"cancelled":         {conflict, fmt.Errorf("delete: %w", context.Canceled)},
		"refused":           {conflict, errors.New("no")},
		"conflicts to stay": {conflict, conflict, conflict, conflict, conflict, conflict, conflict, conflict, conflict, conflict, conflict, conflict},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			err := retryOnConflict(func() error {
				calls++
				return results[calls-1]
			})
			want := results[len(results)-1]
			assert.True(t, errors.Is(err, want) && calls == len(results), "%d calls return %v, want %d and %v", calls, err, len(results), want)
		})
	}
}
