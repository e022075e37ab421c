// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package machines

import (
	"context"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine/control"
)

// The Secret of the seed. It is in a namespace in which tenants have no rights, and the only Secret
// that is ever read.
const (
	SeedNamespace = metav1.NamespaceSystem
	SeedName      = "drover-machine-control"
	seedKey       = "seed"
)

// NewEnd returns the files of the machine's end, for a machine that is about to be made. It makes
// the seed if there is none.
func (m *Machines) NewEnd(ctx context.Context, uid types.UID, nonce string) (map[string][]byte, error) {
	seed, err := m.ensureSeed(ctx)
	if err != nil {
		return nil, err
	}
	end, err := control.MachineCredentials(seed, nil, string(uid), nonce, m.Clock.Now())
	return map[string][]byte{control.CAFile: end.CA, control.CertFile: end.Cert, control.KeyFile: end.Key}, err
}

// Digest returns a keyed digest (HMAC-SHA256) of a secret text of a VirtualMachine, or "" if there is none. Who
// reads it and has no seed cannot check guesses of the text against it.
func (m *Machines) Digest(ctx context.Context, uid types.UID, text driver.Secret) (string, error) {
	if text.IsZero() {
		return "", nil
	}
	seed, err := m.ensureSeed(ctx)
	if err != nil {
		return "", err
	}
	key, err := hkdf.Key(sha256.New, seed, nil, "drover settings "+string(uid), sha256.Size)
	if err != nil {
		return "", err
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text.Reveal()))
	return hex.EncodeToString(mac.Sum(nil)[:16]), nil
}

// ensureSeed returns the seed, and makes it if there is none.
func (m *Machines) ensureSeed(ctx context.Context) ([]byte, error) {
	seed, err := m.readSeed(ctx)
	if apierrors.IsNotFound(err) {
		return m.makeSeed(ctx)
	}
	return seed, err
}

// readSeed returns the seed. It is read once: another one would be that of no machine.
func (m *Machines) readSeed(ctx context.Context) ([]byte, error) {
	if seed := m.seed.Load(); seed != nil {
		return *seed, nil
	}
	secret, err := m.Secrets.Get(ctx, SeedName, metav1.GetOptions{})
	if err != nil {
		return nil, driver.Errorf(driver.ErrRetry, "read Secret %s/%s, from which the keys of machines derive: %w", SeedNamespace, SeedName, err)
	}
	return m.keepSeed(secret)
}

func (m *Machines) makeSeed(ctx context.Context) ([]byte, error) {
	seed := make([]byte, control.SeedBytes)
	if _, err := rand.Read(seed); err != nil {
		return nil, err
	}
	secret, err := m.Secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: SeedName}, Immutable: new(true), Data: map[string][]byte{seedKey: seed},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return m.readSeed(ctx) // another replica made it
	}
	if err != nil {
		return nil, driver.Errorf(driver.ErrRetry, "create Secret %s/%s, from which the keys of machines derive: %w", SeedNamespace, SeedName, err)
	}
	return m.keepSeed(secret)
}

func (m *Machines) keepSeed(secret *corev1.Secret) ([]byte, error) {
	seed := secret.Data[seedKey]
	if len(seed) != control.SeedBytes {
		return nil, fmt.Errorf("%w: Secret %s/%s: %s has %d bytes and must have %d: delete the Secret, and another one is made", driver.ErrRetry,
			SeedNamespace, SeedName, seedKey, len(seed), control.SeedBytes)
	}
	m.seed.Store(&seed)
	return seed, nil
}
