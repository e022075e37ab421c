// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/config/crd"
)

// The API server publishes a schema shortly after its CRD was installed or
// upgraded.
const (
	schemaTimeout    = 5 * time.Second
	schemaPollPeriod = 250 * time.Millisecond
)

// The API server serves a CRD some seconds after it was installed, on a busy host.
const (
	servedTimeout    = time.Minute
	servedPollPeriod = time.Second
)

// StartEpoch returns the resourceVersion of a live list, which grows from start to start. It waits
// until the API server serves VirtualMachines.
func StartEpoch(ctx context.Context, reader client.Reader) (uint64, error) {
	var vms api.VirtualMachineList
	var cause error
	err := wait.PollUntilContextTimeout(ctx, servedPollPeriod, servedTimeout, true, func(ctx context.Context) (bool, error) {
		before := cause
		ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
		defer cancel()
		if before == nil {
			defer AnnounceWait(ctrl.Log, "Waiting until the API server answers", "request", "list VirtualMachines")()
		}
		cause = reader.List(ctx, &vms, client.Limit(1))
		if !isNotServed(cause) {
			return true, cause
		}
		if before == nil {
			ctrl.Log.Info("Waiting until the API server serves the VirtualMachine CRD", "atMost", servedTimeout.String(), "hint", howToApplyCRD, "cause", cause.Error())
		}
		return false, nil
	})
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case isNotServed(cause):
		return 0, fmt.Errorf("the VirtualMachine CRD is not installed (%s): %w", howToApplyCRD, cause)
	case err != nil:
		return 0, fmt.Errorf("list VirtualMachines: %w", err)
	}
	return strconv.ParseUint(vms.ResourceVersion, 10, 64)
}

// isNotServed reports whether an error says that the API server knows no VirtualMachines, or does
// not answer for their version yet, as it does right after their CRD was installed.
func isNotServed(err error) bool {
	failed, ok := errors.AsType[*apiutil.ErrResourceDiscoveryFailed](err)
	if ok {
		_, ok = (*failed)[api.SchemeGroupVersion]
	}
	return ok || meta.IsNoMatchError(err) || apierrors.IsNotFound(err)
}

const howToApplyCRD = "kubectl apply --server-side -f config/crd/cloudnative.tw_virtualmachines.yaml, or upgrade the Helm chart"

// errOldCRD means that the API server would drop or refuse what this program
// writes.
var errOldCRD = errors.New("the VirtualMachine CRD is older than this program: apply its CRD first (" + howToApplyCRD + ")")

// CheckCRD fails if the API server's VirtualMachines are known to lack something
// that this program writes to their status. It reads the OpenAPI document that the API
// server shows to every authenticated user, so it needs no further permission. If
// there is no answer it logs that, and skips the check.
func CheckCRD(ctx context.Context, cfg *rest.Config) error {
	discoverer, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return err
	}
	pollCtx, cancel := context.WithTimeout(ctx, schemaTimeout)
	defer cancel()
	missing, cause := "", errors.New("the API server has published no schema")
	err = wait.PollUntilContextCancel(pollCtx, schemaPollPeriod, true, func(ctx context.Context) (bool, error) {
		found, isServed, err := crd.FindMissing(ctx, discoverer.RESTClient())
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
