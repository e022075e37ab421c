// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package kvm

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
	"cloudnative.tw/drover/test/assert"
)

// TestAllowed checks which nodes count for a pod without further wishes, unless the case adds them.
func TestAllowed(t *testing.T) {
	t.Parallel()
	taint := corev1.Taint{Key: "dedicated", Value: "vms", Effect: corev1.TaintEffectNoSchedule}
	zone := func(in ...string) *corev1.Affinity {
		return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: in}}}},
		}}}
	}
	for name, c := range map[string]struct {
		wants driver.Placement
		node  corev1.NodeSpec
		want  bool
	}{
		"plain":            {driver.Placement{}, corev1.NodeSpec{}, true},
		"cordoned":         {driver.Placement{}, corev1.NodeSpec{Unschedulable: true}, false},
		"tainted":          {driver.Placement{}, corev1.NodeSpec{Taints: []corev1.Taint{taint}}, false},
		"tolerated":        {driver.Placement{Tolerations: []corev1.Toleration{{Key: "dedicated", Operator: corev1.TolerationOpExists}}}, corev1.NodeSpec{Taints: []corev1.Taint{taint}}, true},
		"preferably not":   {driver.Placement{}, corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectPreferNoSchedule}}}, true},
		"selected":         {driver.Placement{NodeSelector: map[string]string{"zone": "a"}}, corev1.NodeSpec{}, true},
		"not selected":     {driver.Placement{NodeSelector: map[string]string{"zone": "b"}}, corev1.NodeSpec{}, false},
		"by affinity":      {driver.Placement{Affinity: zone("a", "b")}, corev1.NodeSpec{}, true},
		"against affinity": {driver.Placement{Affinity: zone("b")}, corev1.NodeSpec{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}}, Spec: c.node}
			assert.Equal(t, "the pod may run there", isAllowed(t.Context(), c.wants, node), c.want)
		})
	}
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		mode     Mode
		resource string
		says     string
	}{
		"default":        {Auto, DefaultResource, ""},
		"another plugin": {Require, "squat.ai/kvm", ""},
		"no mode":        {"", DefaultResource, `--pod-kvm is "": it must be one of [auto require never]`},
		"no domain":      {Never, "kvm", `--pod-kvm-resource is "kvm": it must be`},
		"of Kubernetes":  {Auto, "kubernetes.io/kvm", "it must be"},
		"below it":       {Auto, "node.kubernetes.io/kvm", "it must be"},
		"a quota's":      {Auto, "requests.squat.ai/kvm", "it must be"},
		"not a name":     {Auto, "squat.ai/k v", "it must be"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := CheckFlags(c.mode, c.resource)
			assert.ErrorSays(t, "CheckFlags", err, c.says)
		})
	}
}

// TestNodesCannotBeListed checks that an API server that refuses the list of nodes keeps no pod from
// being created, and that what needs no list stays as it is.
func TestNodesCannotBeListed(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "forbidden", http.StatusForbidden)
	}))
	defer server.Close()
	client := corev1client.NewForConfigOrDie(&rest.Config{Host: server.URL})
	for mode, want := range map[Mode]Choice{
		Auto: {Accelerator: machine.AccelAuto}, Never: {Accelerator: machine.AccelTCG},
		Require: {Accelerator: machine.AccelKVM, Resource: DefaultResource},
	} {
		var said strings.Builder
		c := &Chooser{Mode: mode, Resource: DefaultResource, Nodes: client.Nodes(), Clock: clock.RealClock{}}
		c.Log = funcr.New(func(_, line string) { said.WriteString(line) }, funcr.Options{})
		if got := c.Choose(t.Context(), driver.Placement{}); got != want || strings.Contains(said.String(), "cannot be listed") != (mode == Auto) {
			t.Errorf("%s: chosen is %+v, want %+v; the log has %q", mode, got, want, said.String())
		}
	}
}
