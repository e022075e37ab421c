// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"

	"cloudnative.tw/drover/config/crd"
)

// The API server publishes a schema shortly after its CRD was installed or
// upgraded.
const (
	schemaTimeout    = 5 * time.Second
	schemaPollPeriod = 250 * time.Millisecond
)

// errOldCRD means that the API server would drop or refuse what this program
// writes.
var errOldCRD = errors.New("the VirtualMachine CRD is older than this program: apply its CRD first (kubectl apply --server-side -f config/crd/cloudnative.tw_virtualmachines.yaml, or upgrade the Helm chart)")

// checkCRD fails if the API server's VirtualMachines are known to lack something
// that this program writes to their status. It reads the OpenAPI document that the API
// server shows to every authenticated user, so it needs no further permission. If
// there is no answer it logs that, and skips the check.
func checkCRD(ctx context.Context, cfg *rest.Config, within time.Duration) error {
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return err
	}
	pollCtx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	missing, cause := "", errors.New("the API server has published no schema")
	err = wait.PollUntilContextCancel(pollCtx, schemaPollPeriod, true, func(ctx context.Context) (bool, error) {
		found, isServed, err := crd.FindMissing(ctx, client.RESTClient())
		switch {
		case err != nil && ctx.Err() == nil:
			cause = err
		case isServed:
			missing = found
		}
		return isServed && missing == "" || apierrors.IsForbidden(err), nil
	})
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case missing != "":
		return fmt.Errorf("%w: the one that is installed has no %s", errOldCRD, missing)
	case err != nil || apierrors.IsForbidden(cause):
		ctrl.Log.Info("Could not check whether the CRD is new enough", "cause", cause.Error())
	}
	return nil
}
