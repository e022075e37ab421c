// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package preset installs the objects that every start of drover up brings along, and restores
// them while it runs: the roles of users, and the policies that refuse what kube-apiserver accepts
// and nothing here acts on. Start with Set.
package preset

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/config/rbac"
)

// unenforced has the policies that refuse what nothing here acts on.
//
//go:embed unenforced.yaml
var unenforced []byte

const (
	fieldManager = "drover"
	// keepPeriod is how often Keep restores the objects.
	keepPeriod = time.Minute
	// applyTimeout bounds one attempt of Keep.
	applyTimeout = 20 * time.Second
)

// resources has the resource of each kind in manifests.
var resources = map[string]schema.GroupVersionResource{
	"ClusterRole":                      {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ValidatingAdmissionPolicy":        {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
	"ValidatingAdmissionPolicyBinding": {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
}

// Set has the objects of one start.
type Set struct {
	client           dynamic.Interface
	wanted, unwanted []*unstructured.Unstructured
}

// NewSet returns the roles of users, which the controller for aggregated roles adds to view, edit
// and admin, and the policies. With all APIs there are no policies, and those of a start before
// are removed.
func NewSet(client dynamic.Interface, allAPIs bool) (*Set, error) {
	roles, err := parseObjects(rbac.UserRoles)
	if err != nil {
		return nil, fmt.Errorf("built-in roles: %w", err)
	}
	policies, err := parseObjects(unenforced)
	if err != nil {
		return nil, fmt.Errorf("built-in policies: %w", err)
	}
	if allAPIs {
		return &Set{client: client, wanted: roles, unwanted: policies}, nil
	}
	return &Set{client: client, wanted: append(roles, policies...)}, nil
}

// Apply creates or restores the objects. It writes nothing if they are as they should be.
func (s *Set) Apply(ctx context.Context) error {
	for _, object := range s.wanted {
		if err := s.restorePolicy(ctx, object); err != nil {
			return fmt.Errorf("restore %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	for _, object := range s.unwanted {
		err := s.client.Resource(resources[object.GetKind()]).Delete(ctx, object.GetName(), metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// restorePolicy creates or replaces an object. A server-side apply would keep what others have added,
// such as a condition that switches a policy off. kube-apiserver writes nothing if an update
// changes nothing.
func (s *Set) restorePolicy(ctx context.Context, wanted *unstructured.Unstructured) error {
	objects := s.client.Resource(resources[wanted.GetKind()])
	found, err := objects.Get(ctx, wanted.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = objects.Create(ctx, wanted, metav1.CreateOptions{FieldManager: fieldManager})
		return err
	}
	if err != nil {
		return err
	}
	update := wanted.DeepCopy()
	update.SetResourceVersion(found.GetResourceVersion())
	_, err = objects.Update(ctx, update, metav1.UpdateOptions{FieldManager: fieldManager})
	return err
}

// Keep applies the objects every minute until ctx ends, since someone may change or delete them.
func (s *Set) Keep(ctx context.Context, c clock.WithTicker) {
	ticker := c.NewTicker(keepPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		if err := s.applyWithin(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not restore roles and policies, will try again")
		}
	}
}

func (s *Set) applyWithin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	return s.Apply(ctx)
}

// parseObjects returns the objects of a manifest, whose kinds are known.
func parseObjects(manifest []byte) (all []*unstructured.Unstructured, err error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifest)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, object); err != nil {
			return nil, err
		}
		if _, known := resources[object.GetKind()]; !known {
			return nil, fmt.Errorf("kind %s is not known", object.GetKind())
		}
		all = append(all, object)
	}
}
