// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/config/rbac"
)

// installUserRoles installs the roles that an installation in a cluster has too. The
// controller for aggregated roles adds them to view, edit and admin.
func (c *Config) installUserRoles(ctx context.Context) error {
	client, err := kubernetes.NewForConfig(c.ClientConfig(c.Keys.Admin()))
	if err != nil {
		return err
	}
	roles, err := userRoles()
	if err != nil {
		return fmt.Errorf("built-in roles: %w", err)
	}
	for name, manifest := range roles {
		err := waitFor(ctx, func(ctx context.Context) error {
			_, err := client.RbacV1().ClusterRoles().Patch(ctx, name, types.ApplyPatchType, manifest,
				metav1.PatchOptions{FieldManager: "drover", Force: new(true)})
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// userRoles returns the manifests of the built-in roles by their names.
func userRoles() (map[string][]byte, error) {
	roles := map[string][]byte{}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(rbac.UserRoles)))
	for {
		manifest, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return roles, nil
		}
		if err != nil {
			return nil, err
		}
		var role metav1.PartialObjectMetadata
		if err := yaml.Unmarshal(manifest, &role); err != nil {
			return nil, err
		}
		roles[role.Name] = manifest
	}
}
