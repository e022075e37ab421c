// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"crypto/x509"
	"fmt"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
)

// Every API server publishes the CA of its clients' certificates in this ConfigMap, under this key.
const (
	clientCAConfigMap = "extension-apiserver-authentication"
	clientCAKey       = "client-ca-file"
)

// The time between two readings of the CA, and between two tries to read it.
const (
	clientCAPeriod = time.Minute
	clientCARetry  = 5 * time.Second
)

// clientCA is the CA of clients' certificates. Until the CA is read, and in a cluster without a
// client CA, no certificate is valid. Package dynamiccertificates has such a type with a watch, but
// it would make the program 3 MB larger, since it imports the listers of all kinds of Kubernetes.
type clientCA struct {
	Options
	current atomic.Pointer[content]
}

type content struct {
	dynamiccertificates.CAContentProvider
	text string
}

// Start reads the CA until ctx ends.
func (c *clientCA) Start(ctx context.Context) error {
	for {
		pause := clientCAPeriod
		if err := c.readCA(ctx); err != nil && ctx.Err() == nil {
			pause = clientCARetry
			c.Log.Error(err, "Could not read the CA of client certificates, will try again")
		}
		timer := c.Clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// NeedLeaderElection returns false: every replica serves streams.
func (c *clientCA) NeedLeaderElection() bool { return false }

func (c *clientCA) readCA(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	var published corev1.ConfigMap
	key := types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: clientCAConfigMap}
	err := c.Live.Get(ctx, key, &published)
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	text := published.Data[clientCAKey]
	if text == "" { // the cluster lacks a client CA, or has withdrawn it
		c.current.Store(nil)
		return err
	}
	if before := c.current.Load(); before != nil && before.text == text {
		return nil
	}
	ca, err := dynamiccertificates.NewStaticCAContent(clientCAKey, []byte(text))
	if err != nil {
		return fmt.Errorf("ConfigMap %s: %w", key, err)
	}
	c.current.Store(&content{ca, text})
	return nil
}

// Name implements dynamiccertificates.CAContentProvider.
func (c *clientCA) Name() string { return clientCAKey }

// CurrentCABundleContent implements dynamiccertificates.CAContentProvider.
func (c *clientCA) CurrentCABundleContent() []byte {
	if now := c.current.Load(); now != nil {
		return []byte(now.text)
	}
	return nil
}

// VerifyOptions implements dynamiccertificates.CAContentProvider.
func (c *clientCA) VerifyOptions() (x509.VerifyOptions, bool) {
	if now := c.current.Load(); now != nil {
		return now.VerifyOptions()
	}
	return x509.VerifyOptions{}, false
}

// AddListener implements dynamiccertificates.Notifier. It does nothing, because the authenticator calls
// VerifyOptions for each request.
func (c *clientCA) AddListener(dynamiccertificates.Listener) {}
