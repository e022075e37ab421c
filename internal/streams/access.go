// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package streams

import (
	"context"
	"errors"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// resource is the API resource that has the streams as subresources.
var resource = schema.GroupResource{Group: api.SchemeGroupVersion.Group, Resource: "virtualmachines"}

// authorizeUser returns an error unless the API server allows the user to use the stream.
func (c *call) authorizeUser(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, c.times.open)
	defer cancel()
	return c.authorizeAs(ctx, authorizer.AttributesRecord{
		User: c.user, Verb: kinds[c.stream].verb, Namespace: c.namespace,
		APIGroup: resource.Group, APIVersion: api.SchemeGroupVersion.Version,
		Resource: resource.Resource, Subresource: string(c.stream), Name: c.name, ResourceRequest: true,
	})
}

func (c *call) authorizeAs(ctx context.Context, a authorizer.AttributesRecord) error {
	decision, _, err := c.Authorizer.Authorize(ctx, a)
	switch {
	case err != nil:
		c.Log.Error(err, "Could not ask whether a user may use a stream")
		return newStatusError(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable, "the API server does not answer whether %q may use this stream", c.user.GetName())
	case decision != authorizer.DecisionAllow:
		return forbiddenError(a)
	}
	c.authorized = c.Clock.Now()
	return nil
}

// forbiddenError returns the error that the API server would return.
func forbiddenError(a authorizer.AttributesRecord) error {
	full := schema.GroupResource{Group: a.APIGroup, Resource: a.Resource + "/" + a.Subresource}
	scope := "at the cluster scope"
	if a.Namespace != "" {
		scope = "in the namespace \"" + a.Namespace + "\""
	}
	return apierrors.NewForbidden(full, a.Name, errors.New("User \""+a.User.GetName()+"\" cannot "+a.Verb+
		" resource \""+full.Resource+"\" in API group \""+full.Group+"\" "+scope))
}

// checkPeriodically ends the stream when it has been idle for too long, when its VirtualMachine is gone, or
// when its user has lost the right to use it.
func (c *call) checkPeriodically() {
	ticker := c.Clock.NewTicker(c.times.check)
	defer ticker.Stop()
	checkedRight := c.Clock.Now()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-ticker.C():
		}
		now := c.Clock.Now()
		err := errors.Join(c.checkIdle(now), c.checkVM())
		if err == nil && now.Sub(checkedRight) >= c.times.recheck {
			checkedRight = now
			err = c.checkRight(now)
		}
		if err != nil {
			c.end(err)
		}
	}
}

func (c *call) checkIdle(now time.Time) error {
	if now.Sub(time.Unix(c.last.Load(), 0)) < c.times.idle {
		return nil
	}
	return newStatusError(http.StatusGatewayTimeout, metav1.StatusReasonTimeout, "nothing was transferred for %s", c.times.idle)
}

// checkVM returns an error if the VirtualMachine is certainly gone.
func (c *call) checkVM() error {
	vm, err := c.readVM(c.ctx)
	if apierrors.IsNotFound(err) || err == nil && vm.UID != c.vm.UID {
		return newStatusError(http.StatusGone, metav1.StatusReasonGone, "VirtualMachine %s/%s was deleted", c.namespace, c.name)
	}
	return nil
}

// identityKey is the key of the value that WithIdentity stores in a context.
type identityKey struct{}

// WithIdentity returns a context for a request whose credentials may become invalid. The stream ends soon
// after isKnown returns false.
func WithIdentity(ctx context.Context, isKnown func() bool) context.Context {
	return context.WithValue(ctx, identityKey{}, isKnown)
}

// checkRight returns an error if the user's credentials are no longer valid, if the user has lost the right, or
// if the right could not be confirmed for too long (times.unanswered).
func (c *call) checkRight(now time.Time) error {
	if isKnown, ok := c.ctx.Value(identityKey{}).(func() bool); ok && !isKnown() {
		return errNotKnown
	}
	confirmed := c.authorized
	err := c.checkAccount(c.ctx)
	if err == nil {
		err = c.authorizeUser(c.ctx)
	}
	if apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || now.Sub(confirmed) >= c.times.unanswered {
		return err
	}
	return nil
}

// checkAccount returns an error if the user is a ServiceAccount that was deleted. A SubjectAccessReview does not
// notice the deletion, since RoleBindings outlive the account, and the token is not kept for another review. A
// user without a UID is impersonated, so that its account need not exist.
func (c *call) checkAccount(ctx context.Context) error {
	namespace, name, err := serviceaccount.SplitUsername(c.user.GetName())
	if err != nil || c.user.GetUID() == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.times.open)
	defer cancel()
	var account corev1.ServiceAccount
	err = c.Live.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &account)
	switch {
	case apierrors.IsNotFound(err), err == nil && string(account.UID) != c.user.GetUID():
		return newStatusError(http.StatusUnauthorized, metav1.StatusReasonUnauthorized, "ServiceAccount %s/%s was deleted", namespace, name)
	case err != nil:
		c.Log.Error(err, "Could not read whether the ServiceAccount of a stream still exists", "user", c.user.GetName())
		return unavailableError("the API server does not answer whether %q still exists", c.user.GetName())
	}
	return nil
}
