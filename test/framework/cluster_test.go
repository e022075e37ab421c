// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/test/assert"
)

// shared is the cluster of all tests that do not end their cluster.
var shared *Cluster

func TestMain(m *testing.M) { os.Exit(RunTests(m, &shared, ClusterOptions{})) }

func TestClusterDataSurvivesStopAndKill(t *testing.T) {
	c := shared
	host := c.Config.Host
	for name, end := range map[string]func() error{"stop": c.Stop, "kill": c.Kill} {
		t.Run(name, func(t *testing.T) {
			createConfigMap(t, c, name)
			assert.NoError(t, end())
			assert.NoError(t, c.Start())
			assert.Equal(t, "cluster moved from "+host+" to", c.Config.Host, host)
			assert.ReportError(t, assert.ErrorOf(newClient(t, c).CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})))
		})
	}
}

// TestVirtualClusters checks that each virtual cluster has a separate id, VirtualMachines and
// kube-system.
func TestVirtualClusters(t *testing.T) {
	virtual, err := shared.ServeVirtual()
	assert.NoError(t, err)
	defer func() {
		assert.ReportError(t, virtual.Close())
	}()
	ids := map[types.UID]bool{}
	for range 2 {
		c, of, err := virtual.New(t.Context())
		assert.NoError(t, err)
		client, vms := newClient(t, c), versioned.NewForConfigOrDie(c.Config).CloudnativeV1alpha1()
		system, err := client.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
		assert.Require(t, err == nil && !ids[system.UID], "%v, error %v, after %v", system.UID, err, ids)
		ids[system.UID] = true
		assert.NoError(t, assert.ErrorOf(vms.VirtualMachines(of.Namespace).Create(t.Context(), NewVM("vm").Namespace(of.Namespace).Obj(), metav1.CreateOptions{})))
		list, err := vms.VirtualMachines(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
		assert.True(t, err == nil && len(list.Items) == 1, "there are %d VirtualMachines, error %v", len(list.Items), err)
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "lease", Namespace: metav1.NamespaceSystem}}
		assert.ReportError(t, assert.ErrorOf(client.CoordinationV1().Leases(metav1.NamespaceSystem).Create(t.Context(), lease, metav1.CreateOptions{})))
		assert.Equal(t, "writes", virtual.CountWrites(of), 1)
	}
}

func TestCloseRemovesTheProcessAndTemporaryData(t *testing.T) {
	c, err := NewCluster(ClusterOptions{})
	assert.NoError(t, err)
	pid := c.PID()
	assert.NoError(t, c.Close())
	assert.True(t, syscall.Kill(pid, 0) != nil, "process %d is still there", pid)
	_, err = os.Stat(c.DataDir)
	assert.True(t, os.IsNotExist(err), "data dir %s is still there: %v", c.DataDir, err)
}

func TestStartError(t *testing.T) {
	_, err := NewCluster(ClusterOptions{Args: []string{"--bind-address=nowhere"}})
	assert.True(t, err != nil && strings.Contains(err.Error(), `--bind-address "nowhere" is not an IP address`), "got %v", err)
}

func createConfigMap(t *testing.T, c *Cluster, name string) {
	t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := newClient(t, c).CoreV1().ConfigMaps("default").Create(context.Background(), object, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

func newClient(t testing.TB, c *Cluster) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(c.Config)
	assert.NoError(t, err)
	return client
}
