// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package users

import (
	"cmp"
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework/rules"
)

// RequestTimeout bounds requests to the API.
const RequestTimeout = 5 * time.Second

// RetryRequest repeats an operation until it succeeds, because the API server may be down
// and others write the objects too. It does not repeat a request that the API server finds
// invalid, or whose object is not found.
func RetryRequest(ctx context.Context, do func(context.Context) error) error {
	var final error
	err := assert.Poll(ctx, "a request", func() error {
		attempt, cancel := context.WithTimeout(ctx, RequestTimeout)
		defer cancel()
		err := do(attempt)
		if apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || apierrors.IsBadRequest(err) {
			final = err
			return nil
		}
		return err
	})
	return cmp.Or(final, err)
}

// CheckApplied returns an error unless the status says that the spec is applied.
func CheckApplied(vm *api.VirtualMachine) error { return rules.CheckStatus(vm) }
