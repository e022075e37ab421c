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
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/pod/objects"
	"cloudnative.tw/drover/internal/machine/control"
)

// The Secrets of the seeds are in a namespace that tenants cannot access. The driver reads no other
// Secrets. The second exists only where people reach guests through Drover.
const (
	SeedNamespace = metav1.NamespaceSystem
	SeedName      = "drover-machine-control"
	GuestSeedName = "drover-machine-guests"
	seedKey       = "seed"
)

// NewEnd returns the files with the credentials of a machine that is about to be made. It creates the
// seeds if they do not exist.
func (m *Machines) NewEnd(ctx context.Context, uid types.UID, nonce string) (map[string][]byte, error) {
	seed, err := m.ensureControlSeed(ctx)
	var guestSeed []byte
	if err == nil && m.Guests {
		guestSeed, err = m.ensureSeed(ctx, GuestSeedName, &m.guestSeed)
	}
	if err != nil {
		return nil, err
	}
	end, err := control.MachineCredentials(seed, guestSeed, string(uid), nonce, m.Clock.Now())
	files := map[string][]byte{control.CAFile: end.CA, control.CertFile: end.Cert, control.KeyFile: end.Key}
	if end.GuestCA != nil {
		files[control.GuestCAFile] = end.GuestCA
	}
	return files, err
}

// Guest returns a client that reaches the guest of a machine. The client works for some minutes.
func (m *Machines) Guest(ctx context.Context, machine Machine) (*control.Client, error) {
	seed, err := m.readControlSeed(ctx)
	if err != nil {
		return nil, err
	}
	guestSeed, err := m.ensureSeed(ctx, GuestSeedName, &m.guestSeed) // no machine may have been made with it yet
	if err != nil {
		return nil, err
	}
	credentials, err := control.GuestCredentials(seed, guestSeed, string(machine.UID), machine.Nonce, m.Clock.Now())
	if err != nil {
		return nil, err
	}
	return newClient(machine, credentials)
}

// Digests returns the digests of the user-data and network data of a spec.
func (m *Machines) Digests(ctx context.Context, spec driver.ServerSpec) (digests objects.Digests, err error) {
	if digests.UserData, err = m.newDigest(ctx, spec.UID, spec.UserData); err == nil {
		digests.NetworkData, err = m.newDigest(ctx, spec.UID, spec.NetworkData)
	}
	return digests, err
}

// newDigest returns a keyed digest (HMAC-SHA256) of a secret text of a VirtualMachine, "" if there is none. Without
// the seed, a reader of the digest cannot check guesses of the text.
func (m *Machines) newDigest(ctx context.Context, uid types.UID, text driver.Secret) (string, error) {
	if text.IsZero() {
		return "", nil
	}
	seed, err := m.ensureControlSeed(ctx)
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

// ensureControlSeed returns the seed of the control channel, and creates it if it does not exist.
func (m *Machines) ensureControlSeed(ctx context.Context) ([]byte, error) {
	return m.ensureSeed(ctx, SeedName, &m.seed)
}

// readControlSeed returns the seed of the control channel.
func (m *Machines) readControlSeed(ctx context.Context) ([]byte, error) {
	return m.readSeed(ctx, SeedName, &m.seed)
}

// knownSeed is a seed that was read, nil before.
type knownSeed = atomic.Pointer[[]byte]

// ensureSeed returns a seed, and creates it if it does not exist.
func (m *Machines) ensureSeed(ctx context.Context, name string, known *knownSeed) ([]byte, error) {
	seed, err := m.readSeed(ctx, name, known)
	if apierrors.IsNotFound(err) {
		return m.createSeed(ctx, name, known)
	}
	return seed, err
}

// readSeed returns a seed. It reads each once, since machines do not know another one.
func (m *Machines) readSeed(ctx context.Context, name string, known *knownSeed) ([]byte, error) {
	if seed := known.Load(); seed != nil {
		return *seed, nil
	}
	secret, err := m.Secrets.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, driver.Errorf(driver.ErrRetry, "read Secret %s/%s, from which the keys of machines derive: %w", SeedNamespace, name, err)
	}
	return keepSeed(secret, known)
}

// createSeed creates a seed. If another replica has just done so, it returns that seed.
func (m *Machines) createSeed(ctx context.Context, name string, known *knownSeed) ([]byte, error) {
	seed := make([]byte, control.SeedBytes)
	if _, err := rand.Read(seed); err != nil {
		return nil, err
	}
	secret, err := m.Secrets.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Immutable: new(true), Data: map[string][]byte{seedKey: seed},
	}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return m.readSeed(ctx, name, known) // another replica made it
	}
	if err != nil {
		return nil, driver.Errorf(driver.ErrRetry, "create Secret %s/%s, from which the keys of machines derive: %w", SeedNamespace, name, err)
	}
	return keepSeed(secret, known)
}

// keepSeed returns the seed in a Secret and remembers it.
func keepSeed(secret *corev1.Secret, known *knownSeed) ([]byte, error) {
	seed := secret.Data[seedKey]
	if len(seed) != control.SeedBytes {
		return nil, fmt.Errorf("%w: Secret %s/%s: %s has %d bytes and must have %d: delete the Secret, and another one is made", driver.ErrRetry,
			SeedNamespace, secret.Name, seedKey, len(seed), control.SeedBytes)
	}
	known.Store(&seed)
	return seed, nil
}
