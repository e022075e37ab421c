// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kvm chooses whether the pod of a machine requests KVM, as an extended resource that a device plugin
// offers on nodes. kube-scheduler then places the pod on a node with KVM. Start with Chooser.
package kvm

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/pager"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
)

// Mode says when pods request KVM.
type Mode string

const (
	// Auto requests KVM if a node offers it that the pod may run on.
	Auto Mode = "auto"
	// Require requests KVM for every pod, which otherwise does not start.
	Require Mode = "require"
	// Never requests no KVM.
	Never Mode = "never"
)

var modes = []Mode{Auto, Require, Never}

// DefaultResource is the resource that the device plugin of KubeVirt offers.
const DefaultResource = "devices.kubevirt.io/kvm"

// CheckFlags refuses invalid values of the flags --pod-kvm and --pod-kvm-resource.
func CheckFlags(mode Mode, name string) error {
	if !slices.Contains(modes, mode) {
		return fmt.Errorf("--pod-kvm is %q: it must be one of %v", mode, modes)
	}
	if problems := validation.IsQualifiedName(name); len(problems) > 0 || !isExtended(name) {
		return fmt.Errorf("--pod-kvm-resource is %q: it must be the name of an extended resource, as DOMAIN/NAME with another domain than kubernetes.io", name)
	}
	return nil
}

// isExtended reports whether a name can be the name of an extended resource, which a device plugin offers.
func isExtended(name string) bool {
	domain, _, ok := strings.Cut(name, "/")
	return ok && domain != "kubernetes.io" && !strings.HasSuffix(domain, ".kubernetes.io") && !strings.HasPrefix(domain, "requests.")
}

// Chooser chooses whether pods request KVM.
type Chooser struct {
	Mode     Mode
	Resource corev1.ResourceName
	Nodes    corev1client.NodeInterface
	Clock    clock.PassiveClock
	Log      logr.Logger

	mu     sync.Mutex
	offers []corev1.Node
	readAt time.Time
}

// Choice is the accelerator that was chosen for a pod.
type Choice struct {
	// Accelerator is the value for the machine's description.
	Accelerator string
	// Resource is the resource that the pod requests, "" for none.
	Resource corev1.ResourceName
}

// AddTo adds the resource to the requests and limits of a container.
func (c Choice) AddTo(requirements *corev1.ResourceRequirements) {
	if c.Resource == "" {
		return
	}
	for _, list := range []corev1.ResourceList{requirements.Requests, requirements.Limits} {
		list[c.Resource] = *resource.NewQuantity(1, resource.DecimalSI)
	}
}

// Choose chooses for a pod that is about to be created. A machine that finds KVM broken is emulated with
// Auto, and does not start with Require. If nodes cannot be listed, the pod requests no KVM: that is
// better than not to start.
func (c *Chooser) Choose(ctx context.Context, wants driver.Placement) Choice {
	if c.Mode == Never {
		return Choice{Accelerator: machine.AccelTCG}
	}
	if c.Mode == Require {
		return Choice{Accelerator: machine.AccelKVM, Resource: c.Resource}
	}
	nodes, err := c.readOffers(ctx)
	if err != nil {
		c.Log.Info("Nodes cannot be listed, so a new pod requests no KVM", "cause", err.Error())
	}
	if !slices.ContainsFunc(nodes, func(n corev1.Node) bool { return isAllowed(ctx, wants, &n) }) {
		return Choice{Accelerator: machine.AccelAuto}
	}
	return Choice{Accelerator: machine.AccelAuto, Resource: c.Resource}
}

// maxAge limits the age of the cached nodes. Many machines may start at once, so they are not listed for
// each.
const maxAge = 30 * time.Second

// readOffers returns the nodes that offer the resource, with the fields that scheduling needs.
func (c *Chooser) readOffers(ctx context.Context) ([]corev1.Node, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now := c.Clock.Now(); c.readAt.IsZero() || now.Sub(c.readAt) >= maxAge {
		var offers []corev1.Node
		list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return c.Nodes.List(ctx, options)
		})
		err := list.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
			if n, ok := o.(*corev1.Node); ok && n.Status.Allocatable.Name(c.Resource, resource.DecimalSI).Sign() > 0 {
				offers = append(offers, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels}, Spec: n.Spec})
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		c.offers, c.readAt = offers, now
	}
	return c.offers, nil
}

// isAllowed reports whether a placement allows a pod on a node, whatever else runs there.
func isAllowed(ctx context.Context, wants driver.Placement, node *corev1.Node) bool {
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeSelector: wants.NodeSelector, Affinity: wants.Affinity}}
	matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node)
	_, isTainted := schedulinghelpers.FindMatchingUntoleratedTaint(logr.FromContextOrDiscard(ctx), node.Spec.Taints, wants.Tolerations,
		func(t *corev1.Taint) bool { return t.Effect != corev1.TaintEffectPreferNoSchedule }, false)
	return err == nil && matches && !isTainted && !node.Spec.Unschedulable
}
