// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/test/assert"
)

// noResponseTimeout is the timeout of requests that should get no answer, and patience the timeout
// of the others.
const (
	noResponseTimeout = 500 * time.Millisecond
	responseTimeout   = time.Minute
)

// proxiedClient queries the API server through a proxy.
type proxiedClient struct {
	t      *testing.T
	client kubernetes.Interface
}

func (p *proxiedClient) createConfigMap(name string, within time.Duration) error {
	ctx, cancel := context.WithTimeout(p.t.Context(), within)
	defer cancel()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := p.client.CoreV1().ConfigMaps("default").Create(ctx, object, metav1.CreateOptions{})
	return err
}

// hasConfigMap queries the API server directly.
func hasConfigMap(t testing.TB, c *Cluster, name string) bool {
	t.Helper()
	_, err := newClient(t, c).CoreV1().ConfigMaps("default").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func newProxiedClient(t *testing.T, p *APIProxy) *proxiedClient {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", p.Kubeconfig)
	assert.NoError(t, err)
	config.NextProtos = []string{"http/1.1"} // with HTTP/1.1 a timeout closes the connection of the request
	client, err := kubernetes.NewForConfig(config)
	assert.NoError(t, err)
	return &proxiedClient{t, client}
}

func TestAPIProxy(t *testing.T) {
	c := shared
	proxy := c.NewAPIProxy(t)
	client := newProxiedClient(t, proxy)
	pass := func(t *testing.T, name string) {
		t.Helper()
		assert.NoError(t, client.createConfigMap(name, responseTimeout))
	}
	pass(t, "first")
	t.Run("cut", func(t *testing.T) {
		proxy.Disconnect()
		err := client.createConfigMap("cut", responseTimeout)
		assert.True(t, err != nil && !errors.Is(err, context.DeadlineExceeded), "got %v, want a connection that is refused", err)
		proxy.Restore()
		pass(t, "after-cut")
	})
	t.Run("blackhole", func(t *testing.T) {
		proxy.Blackhole()
		err := client.createConfigMap("held", noResponseTimeout)
		if !errors.Is(err, context.DeadlineExceeded) || hasConfigMap(t, c, "held") {
			t.Errorf("got %v, and the object exists: %v; want neither an answer nor the object", err, hasConfigMap(t, c, "held"))
		}
		done := make(chan error, 1)
		go func() { done <- client.createConfigMap("kept-back", responseTimeout) }()
		proxy.Restore()
		assert.ErrorIs(t, "after the end of it", <-done, nil)
	})
	t.Run("late", func(t *testing.T) {
		pass(t, "connects")
		proxy.DelayReplies(responseTimeout)
		assert.ErrorIs(t, "want no answer", client.createConfigMap("unanswered", 10*noResponseTimeout), context.DeadlineExceeded)
		assert.Eventually(t, "the object that was requested is there", func(t testing.TB) error {
			return assert.ErrorUnless(hasConfigMap(t, c, "unanswered"), "the object does not exist")
		})
		proxy.DelayReplies(2 * noResponseTimeout)
		begin := time.Now()
		pass(t, "answered-late")
		took := time.Since(begin)
		assert.True(t, took >= 2*noResponseTimeout, "the request took %s, want at least %s", took, 2*noResponseTimeout)
		proxy.Restore()
		pass(t, "after-late")
	})
}
