// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/yaml"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/config/crd"
)

// The API server publishes a schema shortly after its CRD was installed or
// upgraded.
const (
	schemaTimeout    = 5 * time.Second
	schemaPollPeriod = 250 * time.Millisecond
)

// schema is the part of an OpenAPI schema that is compared.
type schema struct {
	Properties map[string]*schema `json:"properties"`
	Items      *schema            `json:"items"`
	Enum       []any              `json:"enum"`
}

// errOldCRD means that the API server would drop or refuse what this program
// writes.
var errOldCRD = errors.New("the VirtualMachine CRD is older than this program: apply its CRD first (kubectl apply --server-side -f config/crd/cloudnative.tw_virtualmachines.yaml, or upgrade the Helm chart)")

// checkCRD fails if the API server's VirtualMachines are known to lack something
// that this program writes to their status. It reads the OpenAPI document that the API
// server shows to every authenticated user, so it needs no further permission. If
// there is no answer it logs that, and skips the check.
func checkCRD(ctx context.Context, cfg *rest.Config, within time.Duration) error {
	want, err := builtInStatus()
	if err != nil {
		return err
	}
	client, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return err
	}
	pollCtx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	missing, cause := "", errors.New("the API server has published no schema")
	err = wait.PollUntilContextCancel(pollCtx, schemaPollPeriod, true, func(ctx context.Context) (bool, error) {
		have, err := servedStatus(ctx, client)
		switch {
		case err != nil && ctx.Err() == nil:
			cause = err
		case have != nil:
			missing = firstMissing("status", want, have)
		}
		return have != nil && missing == "" || apierrors.IsForbidden(err), nil
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

// builtInStatus returns the status schema of the CRD that this program was built
// with.
func builtInStatus() (*schema, error) {
	var def struct {
		Spec struct {
			Versions []struct {
				Name   string `json:"name"`
				Schema struct {
					OpenAPIV3Schema schema `json:"openAPIV3Schema"`
				} `json:"schema"`
			} `json:"versions"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(crd.VirtualMachine, &def); err != nil {
		return nil, fmt.Errorf("built-in CRD: %w", err)
	}
	for _, v := range def.Spec.Versions {
		if status := v.Schema.OpenAPIV3Schema.Properties["status"]; v.Name == api.SchemeGroupVersion.Version && status != nil {
			return status, nil
		}
	}
	return nil, fmt.Errorf("built-in CRD: no status in version %s", api.SchemeGroupVersion.Version)
}

// servedStatus returns the status schema that the API server knows, or nil while it
// has published none.
func servedStatus(ctx context.Context, client discovery.DiscoveryInterface) (*schema, error) {
	text, err := client.RESTClient().Get().AbsPath("/openapi/v3/apis/" + api.SchemeGroupVersion.String()).DoRaw(ctx)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // Nil is the answer for none.
	}
	if err != nil {
		return nil, err
	}
	var document struct {
		Components struct {
			Schemas map[string]*schema `json:"schemas"`
		} `json:"components"`
	}
	if err := json.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	if vm := document.Components.Schemas["tw.cloudnative.v1alpha1.VirtualMachine"]; vm != nil {
		return vm.Properties["status"], nil
	}
	return nil, nil //nolint:nilnil // As above.
}

// firstMissing names the first field or value of want that is missing from have, or
// returns "".
func firstMissing(path string, want, have *schema) string {
	if want == nil {
		return ""
	}
	if have == nil {
		return path
	}
	for _, value := range want.Enum {
		if len(have.Enum) > 0 && !slices.ContainsFunc(have.Enum, func(v any) bool { return reflect.DeepEqual(v, value) }) {
			return fmt.Sprintf("value %v of %s", value, path)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(want.Properties)) {
		if missing := firstMissing(path+"."+name, want.Properties[name], have.Properties[name]); missing != "" {
			return missing
		}
	}
	return firstMissing(path+"[]", want.Items, have.Items)
}
