// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// FindMissing names the first field or value of the status that this program's CRD has and
// the API server's VirtualMachines lack, or returns "". It reads the OpenAPI document that
// the API server shows to every authenticated user. isServed is false while that shows no
// VirtualMachines, as for a moment after the CRD was installed or upgraded.
func FindMissing(ctx context.Context, client rest.Interface) (missing string, isServed bool, err error) {
	want, err := builtInStatus()
	if err != nil {
		return "", false, err
	}
	have, err := servedStatus(ctx, client)
	if err != nil || have == nil {
		return "", false, err
	}
	return firstMissing("status", want, have), true, nil
}

// schema is the part of an OpenAPI schema that is compared.
type schema struct {
	Properties map[string]*schema `json:"properties"`
	Items      *schema            `json:"items"`
	Enum       []any              `json:"enum"`
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
	if err := yaml.Unmarshal(VirtualMachine, &def); err != nil {
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
func servedStatus(ctx context.Context, client rest.Interface) (*schema, error) {
	text, err := client.Get().AbsPath("/openapi/v3/apis/" + api.SchemeGroupVersion.String()).DoRaw(ctx)
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
