// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package preset installs the objects that drover up needs in its API, and restores them while it
// runs: the roles of users, and the policies that refuse objects on which nothing acts, although
// kube-apiserver would accept them. Start with Set.
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

// unenforced has the policies that refuse objects on which nothing acts.
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

// resources has the resource of each kind in the manifests.
var resources = map[string]schema.GroupVersionResource{
	"ClusterRole":                      {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ValidatingAdmissionPolicy":        {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"},
	"ValidatingAdmissionPolicyBinding": {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"},
}

// Set has the objects that one start installs or removes.
type Set struct {
	client           dynamic.Interface
	wanted, unwanted []*unstructured.Unstructured
}

// NewSet returns a Set with the roles of users, which the controller for aggregated roles adds to view,
// edit and admin, and with the policies. If allAPIs is set, the Set removes the policies of an earlier
// start instead.
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

// Apply creates or restores the objects. It does not cause a write in etcd if they are unchanged.
func (s *Set) Apply(ctx context.Context) error {
	for _, object := range s.wanted {
		if err := s.restoreObject(ctx, object); err != nil {
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

// restoreObject creates or replaces an object. A server-side apply would keep additions of others,
// such as a condition that switches a policy off. kube-apiserver does not write an update that changes
// nothing.
func (s *Set) restoreObject(ctx context.Context, wanted *unstructured.Unstructured) error {
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
		if err := s.applyWithTimeout(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not restore roles and policies, will try again")
		}
	}
}

func (s *Set) applyWithTimeout(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, applyTimeout)
	defer cancel()
	return s.Apply(ctx)
}

// parseObjects returns the objects of a manifest. It returns an error for a kind that resources lacks.
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
			return nil, fmt.Errorf("kind %s is unknown", object.GetKind())
		}
		all = append(all, object)
	}
}
