// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/client-go/applyconfigurations/core/v1"
	certutil "k8s.io/client-go/util/cert"
	"sigs.k8s.io/controller-runtime/pkg/client"

	streams "cloudnative.tw/drover/apis/streams/v1alpha1"
)

const (
	// publishPeriod is how often the ConfigMap is applied, which bounds how long it may be
	// outdated.
	publishPeriod  = time.Minute
	publishTimeout = 10 * time.Second
	fieldManager   = "drover-streams"
)

// publisher keeps the ConfigMap that tells clients where the endpoint is. It runs only on the
// leader, so that replicas with different certificates do not overwrite the ConfigMap in turns.
type publisher struct{ Options }

// Start publishes until ctx ends.
func (p *publisher) Start(ctx context.Context) error {
	ticker := p.Clock.NewTicker(publishPeriod)
	defer ticker.Stop()
	for {
		if err := p.publishAddress(ctx); err != nil && ctx.Err() == nil {
			p.Log.Error(err, "Could not publish the address of streams, will try again", "namespace", streams.ConfigMapNamespace, "configMap", streams.ConfigMapName)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// NeedLeaderElection implements manager.LeaderElectionRunnable.
func (p *publisher) NeedLeaderElection() bool { return true }

func (p *publisher) publishAddress(ctx context.Context) error {
	ca, err := readCA(p.CertDir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, publishTimeout)
	defer cancel()
	object := corev1.ConfigMap(streams.ConfigMapName, streams.ConfigMapNamespace).
		WithLabels(map[string]string{"app.kubernetes.io/name": "drover"}).
		WithData(map[string]string{streams.AddressKey: p.URL, streams.CAKey: ca, streams.DriversKey: strings.Join(p.Drivers, ",")})
	return p.Client.Apply(ctx, object, client.FieldOwner(fieldManager), client.ForceOwnership)
}

// readCA reads the certificates for clients from ca.crt, and leaves out other contents of the file.
func readCA(dir string) (string, error) {
	path := filepath.Join(dir, caFile)
	text, err := os.ReadFile(path) //nolint:gosec // the operator names the folder
	if err != nil {
		return "", err
	}
	certificates, err := certutil.ParseCertsPEM(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	encoded, err := certutil.EncodeCertificates(certificates...)
	return string(encoded), err
}
