// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/config/crd"
)

// installAPI installs this program's version of the API, its roles and policies. It runs before the
// components that list the existing kinds, such as the garbage collector.
func (c *Config) installAPI(ctx context.Context) error {
	client, err := apiextensions.NewForConfig(c.ClientConfig(c.Keys.Controller()))
	if err != nil {
		return err
	}
	var want apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(crd.VirtualMachine, &want); err != nil {
		return fmt.Errorf("built-in CRD: %w", err)
	}
	err = c.waitFor(ctx, func(ctx context.Context) error {
		return applyCRD(ctx, client, want.Name, crd.VirtualMachine)
	})
	if err != nil {
		return err
	}
	// kube-apiserver prepares the kind at the same time, which takes longer.
	if err := c.installPresets(ctx); err != nil {
		return err
	}
	return c.waitFor(ctx, func(ctx context.Context) error {
		return checkServed(ctx, client, &want)
	})
}

func applyCRD(ctx context.Context, client apiextensions.Interface, name string, manifest []byte) error {
	force := true
	_, err := client.ApiextensionsV1().CustomResourceDefinitions().Patch(ctx, name, types.ApplyPatchType, manifest,
		metav1.PatchOptions{FieldManager: "drover", Force: &force})
	return err
}

// checkServed returns an error if the API is not served yet. It sends requests, because the condition
// Established becomes true slightly before requests succeed, and because the list of kinds, which
// kubectl reads first, may be complete slightly later.
func checkServed(ctx context.Context, client apiextensions.Interface, want *apiextensionsv1.CustomResourceDefinition) error {
	for _, version := range want.Spec.Versions {
		if !version.Served {
			continue
		}
		group := fmt.Sprintf("/apis/%s/%s", want.Spec.Group, version.Name)
		for _, path := range []string{group, group + "/" + want.Spec.Names.Plural} {
			if _, err := client.Discovery().RESTClient().Get().AbsPath(path).Param("limit", "1").DoRaw(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}
