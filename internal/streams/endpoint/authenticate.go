// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	authenticationv1 "k8s.io/client-go/kubernetes/typed/authentication/v1"
	authorizationv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/internal/streams"
)

// How long an answer of the API server is cached, and how long the API server may take to answer.
const (
	tokenTTL      = 10 * time.Second
	allowedTTL    = 10 * time.Second
	forbiddenTTL  = 5 * time.Second
	reviewTimeout = 10 * time.Second
)

// NewAuthorizer returns an authorizer that asks the API server by SubjectAccessReviews.
func NewAuthorizer(config *rest.Config, client *http.Client) (authorizer.Authorizer, error) {
	reviews, err := authorizationv1.NewForConfigAndClient(config, client)
	if err != nil {
		return nil, err
	}
	return authorizerfactory.DelegatingAuthorizerConfig{
		SubjectAccessReviewClient: reviews,
		AllowCacheTTL:             allowedTTL, DenyCacheTTL: forbiddenTTL, WebhookRetryBackoff: newBackoff(),
	}.New()
}

// newBackoff returns the waits between tries to reach the API server.
func newBackoff() *wait.Backoff {
	return &wait.Backoff{Duration: 200 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 4}
}

// clients authenticates the users of requests, by tokens, which the API server reviews, and
// by certificates of the cluster's client CA.
type clients struct {
	authenticator.Request
	// certificates is the part of Request that does not call the API server.
	certificates authenticator.Request

	ca   dynamiccertificates.CAContentProvider
	gate *gate
	next http.Handler
	log  logr.Logger
}

func newClients(o Options, ca dynamiccertificates.CAContentProvider) (*clients, error) {
	reviews, err := authenticationv1.NewForConfigAndClient(o.Config, o.HTTPClient)
	if err != nil {
		return nil, err
	}
	config := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous:                          &apiserver.AnonymousAuthConfig{Enabled: false},
		ClientCertificateCAContentProvider: ca,
		// Without a RequestHeaderConfig, the headers of an authenticating proxy are ignored.
	}
	certificates, _, err := config.New()
	if err != nil {
		return nil, err
	}
	config.TokenAccessReviewClient, config.TokenAccessReviewTimeout = reviews, reviewTimeout
	config.CacheTTL, config.WebhookRetryBackoff = tokenTTL, newBackoff()
	check, _, err := config.New()
	return &clients{Request: check, certificates: certificates, ca: ca, gate: newGate(o.Clock), next: o.Handler, log: o.Log}, err
}

// ServeHTTP implements http.Handler.
func (c *clients) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ContentLength != 0 {
		refuseRequestBody(w)
		return
	}
	for name := range r.Header {
		if strings.HasPrefix(name, "Impersonate-") {
			streams.Refuse(w, apierrors.NewBadRequest("the header "+name+" is not allowed: the streams endpoint does not impersonate users"))
			return
		}
	}
	who, err := c.identifyUser(r)
	if err != nil {
		streams.Refuse(w, err)
		return
	}
	if conn, ok := r.Context().Value(connectionKey{}).(*connection); ok {
		if err := conn.admitUser(who.GetName()); err != nil {
			streams.Refuse(w, err)
			return
		}
	}
	ctx := request.WithUser(r.Context(), who)
	if began := c.gate.clock.Now(); c.hasCertificate(r, began) {
		ctx = streams.WithIdentity(ctx, func() bool { return c.hasCertificate(r, began) })
	}
	c.next.ServeHTTP(w, r.WithContext(ctx))
}

// identifyUser returns the user of a request. It calls the API server only for a request with a
// token and without a valid certificate. So a flood of tokens does not delay users with a certificate.
func (c *clients) identifyUser(r *http.Request) (user.Info, error) {
	answer, ok, err := c.certificates.AuthenticateRequest(r)
	switch {
	case ok && err == nil:
		return answer.User, nil
	case !hasToken(r):
		return nil, apierrors.NewUnauthorized(refusalText(err))
	}
	leave, err := c.gate.admitRequest(r)
	if err != nil {
		return nil, err
	}
	// A review continues when its client has left: it still occupies its place, and its result counts.
	answer, ok, err = c.AuthenticateRequest(r.WithContext(context.WithoutCancel(r.Context())))
	isAnswered := !isUnanswered(err)
	leave(isAnswered, ok)
	switch {
	case !isAnswered:
		c.log.Error(err, "Could not ask the API server who a client is")
		return nil, unavailableError()
	case !ok:
		c.log.V(2).Info("Client not authenticated", "cause", err)
		return nil, apierrors.NewUnauthorized(refusalText(err))
	}
	return answer.User, nil
}

// unavailableError returns the answer to a client whose credentials could not be checked.
func unavailableError() error {
	err := apierrors.NewServiceUnavailable("the API server does not answer who the client is")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	return err
}

// isUnanswered reports whether a review has failed for a reason other than the client's credentials:
// the API server cannot be reached, is too slow, or answers the controller with an error. The error
// for a refused token is of another kind.
func isUnanswered(err error) bool {
	for _, cause := range causesOf(err) {
		_, isStatus := errors.AsType[*apierrors.StatusError](cause)
		_, isNetwork := errors.AsType[net.Error](cause) // also true for an exceeded deadline
		if isStatus || isNetwork || errors.Is(cause, io.ErrUnexpectedEOF) {
			return true
		}
	}
	return false
}

// hasCertificate reports whether the request has a client certificate of the CA as it is now, and
// whether the certificate is valid at the time now. A valid certificate takes precedence over a token.
func (c *clients) hasCertificate(r *http.Request, now time.Time) bool {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return false
	}
	options, ok := c.ca.VerifyOptions()
	if !ok {
		return false
	}
	options.CurrentTime, options.Intermediates = now, x509.NewCertPool()
	for _, intermediate := range r.TLS.PeerCertificates[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	_, err := r.TLS.PeerCertificates[0].Verify(options)
	return err == nil
}

// refuseRequestBody refuses a request with a body, since no stream needs one. After its answer the server
// would wait for the body without a limit, even if the client is not a user.
func refuseRequestBody(w http.ResponseWriter) {
	w.Header().Set("Connection", "close")
	_ = http.NewResponseController(w).SetReadDeadline(time.Unix(1, 0)) // a past time: do not read the body
	streams.Refuse(w, apierrors.NewBadRequest("the request has a body: the request for a stream must not have one"))
}

// refusalText explains "Unauthorized" only to a client that has proven to hold the key of its certificate.
func refusalText(err error) string {
	for _, cause := range causesOf(err) {
		invalid, ok := errors.AsType[x509.CertificateInvalidError](cause)
		switch {
		case ok && invalid.Reason == x509.Expired:
			return "Unauthorized: the client certificate has expired or is not valid yet"
		case ok:
			return "Unauthorized: the client certificate is not valid"
		}
	}
	return "Unauthorized"
}

// causesOf returns the errors of all authentication methods. errors.As does not look into an Aggregate.
func causesOf(err error) []error {
	if all, ok := errors.AsType[utilerrors.Aggregate](err); ok {
		return all.Errors()
	}
	return []error{err}
}
