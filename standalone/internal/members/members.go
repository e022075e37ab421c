// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package members gives users of the host who are in group drover access to the API: a certificate of an hour, and
// the right to edit VirtualMachines in a separate namespace for each. Users who left the group lose both.
//
// Start with Server.Run. serve.go answers a login, grant.go gives access, and revoke.go takes it. The client is
// internal/login.
package members

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509/pkix"
	"errors"
	"net"
	"sync"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"cloudnative.tw/drover/internal/machine/accounts"
)

// period is how often the rights of all users are compared with the group. Streams are authorized again each minute, so
// they end within two minutes after their user has left.
const period = 30 * time.Second

// answerWithin bounds the requests to the API for one login, and those of one user in a comparison.
const answerWithin = 15 * time.Second

// Directory has the users and groups of the host. Its errors other than accounts.ErrUnknown mean that nothing is
// known.
type Directory interface {
	FindUser(name string) (accounts.User, error)
	FindUserByID(id uint32) (accounts.User, error)
	FindGroup(name string) (accounts.Group, error)
	GroupsOf(u accounts.User) ([]uint32, error)
}

// Host is the Directory of this host.
type Host struct{}

// FindUser implements Directory.
func (Host) FindUser(name string) (accounts.User, error) { return accounts.FindUser(name) }

// FindUserByID implements Directory.
func (Host) FindUserByID(id uint32) (accounts.User, error) { return accounts.FindUserByID(id) }

// FindGroup implements Directory.
func (Host) FindGroup(name string) (accounts.Group, error) { return accounts.FindGroup(name) }

// GroupsOf implements Directory.
func (Host) GroupsOf(u accounts.User) ([]uint32, error) { return accounts.GroupsOf(u) }

// Server gives and takes access.
type Server struct {
	// Dir is the folder of the socket and the kubeconfig.
	Dir string
	// URL is the address of the API, CABundle the file with its CA, and Command the program with which clients log in.
	URL, CABundle, Command string
	// Sign returns a certificate for a key, in PEM.
	Sign      func(subject pkix.Name, key *ecdsa.PublicKey, life time.Duration) ([]byte, error)
	Client    client.Client
	Directory Directory
	Clock     clock.WithTicker

	shares  shares
	serving sync.WaitGroup
	// listenProblem is the last reason why the socket could not be opened.
	listenProblem string
}

// Run serves logins and keeps the rights of users right until ctx ends. It opens the socket once group drover exists.
func (s *Server) Run(ctx context.Context) error {
	ticker := s.Clock.NewTicker(period)
	defer ticker.Stop()
	defer s.serving.Wait()
	var listener *net.UnixListener
	for {
		if listener == nil {
			listener = s.tryListen(ctx)
		}
		if err := s.compareRights(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not compare all rights of users with group drover, will try again")
		}
		select {
		case <-ctx.Done():
			return s.closeListener(listener)
		case <-ticker.C():
		}
	}
}

// tryListen opens the socket and serves it, or returns nil. It logs a problem once.
func (s *Server) tryListen(ctx context.Context) *net.UnixListener {
	listener, err := s.openSocket(ctx)
	if err == nil {
		s.listenProblem = ""
		s.serving.Go(func() { s.acceptConnections(ctx, listener) })
		return listener
	}
	if text := err.Error(); text != s.listenProblem {
		s.listenProblem = text
		if errors.Is(err, accounts.ErrUnknown) {
			klog.FromContext(ctx).Info("Users of this host cannot log in, since it lacks group drover")
		} else {
			klog.FromContext(ctx).Error(err, "Users of this host cannot log in, will try again", "dir", s.Dir)
		}
	}
	return nil
}
