// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"os"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func TestClusterDataSurvivesStopAndKill(t *testing.T) {
	c := StartCluster(t, ClusterOptions{})
	host := c.Config.Host
	for name, end := range map[string]func() error{"stop": c.Stop, "kill": c.Kill} {
		t.Run(name, func(t *testing.T) {
			createConfigMap(t, c, name)
			if err := end(); err != nil {
				t.Fatal(err)
			}
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			if c.Config.Host != host {
				t.Errorf("cluster moved from %s to %s", host, c.Config.Host)
			}
			if _, err := newClient(t, c).CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestClusterServesVirtualMachines(t *testing.T) {
	c := StartCluster(t, ClusterOptions{})
	list, err := newClient(t, c).Discovery().ServerResourcesForGroupVersion("cloudnative.tw/v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	if len(list.APIResources) == 0 {
		t.Error("no resource in cloudnative.tw/v1alpha1")
	}
}

func TestCloseRemovesTheProcessAndTemporaryData(t *testing.T) {
	c, err := NewCluster(ClusterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pid := c.PID()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); err == nil {
		t.Errorf("process %d is still there", pid)
	}
	if _, err := os.Stat(c.DataDir); !os.IsNotExist(err) {
		t.Errorf("data dir %s is still there: %v", c.DataDir, err)
	}
}

func TestStartError(t *testing.T) {
	_, err := NewCluster(ClusterOptions{Args: []string{"--bind-address=nowhere"}})
	if err == nil || !strings.Contains(err.Error(), `--bind-address "nowhere" is no IP address`) {
		t.Errorf("got %v", err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	return client
}
